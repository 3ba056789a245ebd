"""Networks that are not known here: their names, for refusals that say what a file holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from regard.errors import RunError
from regard.weights.files import Opened

READ = (
    "vit", "deit", "dinov2", "dinov2_with_registers", "vit_mae", "vit_msn", "swin", "resnet", "bit", "detr", "marian",
)  # fmt: skip
"""The model_type of every config.json of transformers that is read here."""

_NAMES = {
    "beit": "BEiT", "blip": "BLIP", "chinese_clip": "Chinese CLIP", "clip": "CLIP", "convnext": "ConvNeXt",
    "convnextv2": "ConvNeXt V2", "data2vec-vision": "Data2Vec", "dinov3_convnext": "DINOv3",
    "dinov3_vit": "DINOv3", "efficientnet": "EfficientNet", "eva": "EVA", "evaclip": "EVA-CLIP", "hiera": "Hiera",
    "ijepa": "I-JEPA", "levit": "LeViT", "mobilevit": "MobileViT", "pvt": "PVT", "sam": "SAM", "segformer": "SegFormer",
    "siglip": "SigLIP", "siglip2": "SigLIP 2", "swin": "Swin", "swinv2": "Swin V2", "videomae": "VideoMAE",
    "vit_hybrid": "hybrid ViT", "yolos": "YOLOS", "bert": "BERT", "gpt2": "GPT-2", "t5": "T5", "bart": "BART",
    "mbart": "mBART", "m2m_100": "M2M-100", "whisper": "Whisper",
}  # fmt: skip

# What a tensor's name shows, the surest first.
_SIGNS = {
    r"(cpb|meta)_mlp\.|relative_coords_table|continuous_position_bias_mlp": "Swin V2",
    r"^(model\.)?layers\.\d+\.blocks\.|^swin\.": "Swin",
    r"(^|\.)(logit_bias|head\.probe)$": "SigLIP",
    r"(^|\.)(class_embedding|logit_scale|text_projection|token_embedding\.weight)$|^text_model\.": "CLIP",
    r"rope_embeddings?\.|rope_embed\.|(^|\.)embeddings\.patch_embeddings\.weight$": "DINOv3",
    r"\.(lambda_1|relative_position_bias_table|relative_position_bias\.\S+)$": "BEiT",
}
_PARTS = {
    r"\bfc_norm\.": "the patches are averaged before the norm, ours after it",
    r"\battn_pool\.": "an attention layer pools the patches",
    r"\b(q|k)_norm\.": "queries and keys are normalised",
    r"\.attn\.(q_bias|v_bias|q_proj|k_proj)\b": "queries, keys and values with biases of their own, as in EVA and BEiT",
    r"\.lambda_1$|relative_position": "scales and relative positions, as in BEiT",
    r"\bnorm_pre\.": "a norm before the blocks, as in CLIP",
    r"\.mlp\.(w12|w3|weights_in|weights_out|fc1_g|gate)\b": "a gated MLP (SwiGLU)",
}


def name_of_other(opened: Opened) -> str:
    """The model that a file holds, as its config.json or its tensors say; empty where nothing says."""
    kind, timm = opened.settings.get("model_type"), opened.settings.get("architecture")
    if isinstance(kind, str) and kind not in READ:
        known = _NAMES.get(kind) or _NAMES.get(re.sub(r"_(vision|text)_model$", "", kind))
        return f"{known} (model_type {kind!r} in config.json)" if known else f"model_type {kind!r}, as config.json says"
    if isinstance(timm, str):
        return f"timm's {timm}, as config.json says"
    for sign, name in _SIGNS.items():
        if any(re.search(sign, tensor) for tensor in opened.tensors):
            return f"{name}, as its tensors are named"
    return ""


def refuse_others(opened: Opened) -> None:
    """An error for a folder of transformers whose config.json names another model."""
    kind: Any = opened.settings.get("model_type")
    if isinstance(kind, str) and kind not in READ:
        what = f"the file holds another model: {name_of_other(opened)}"
        raise RunError(what, where=opened.path, do=f"these are read: {', '.join(READ)}")


def reasons(unknown: Iterable[str]) -> str | None:
    """What tensors that are not ours mean, in words."""
    names = list(unknown)
    said = [words for part, words in _PARTS.items() if any(re.search(part, name) for name in names)]
    return f"this is another network: {'; '.join(said)}" if said else None
