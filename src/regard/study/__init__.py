"""Studies: the same recipe over models, amounts of data and seeds; and experiments on why attention works."""

from regard.study.attention import attention_study
from regard.study.design import Study, Trial, data_size, norm, positions
from regard.study.result import Result
from regard.study.run import run_study

__all__ = ["Result", "Study", "Trial", "attention_study", "data_size", "norm", "positions", "run_study"]
