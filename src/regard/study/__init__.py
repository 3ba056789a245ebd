"""Studies: one recipe over models, numbers of training images and seeds; experiments on why attention works."""

from regard.study.ablation import ablation
from regard.study.attention import attention_study
from regard.study.design import Study, data_size, norm, positions
from regard.study.result import Result
from regard.study.run import run_study
from regard.study.transfer_curves import transfer_size
from regard.study.transfer_table import transfer

__all__ = [
    "Result", "Study", "ablation", "attention_study", "data_size", "norm", "positions", "run_study", "transfer",
    "transfer_size",
]  # fmt: skip
