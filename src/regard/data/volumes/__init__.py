"""Volumes from NIfTI and DICOM: reading, tables of subjects, checks, preparation, geometry."""

from regard.data.volumes.frame import ScanFrame
from regard.data.volumes.preparing import Plan, Prepared, Subject
from regard.data.volumes.scan import Scan, is_nifti, read_scan

__all__ = ["Plan", "Prepared", "Scan", "ScanFrame", "Subject", "is_nifti", "read_scan"]
