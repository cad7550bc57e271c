"""The paper's numbers, and the names of variants in tables."""

PAPER: dict[str, dict[str, float]] = {
    "ImageNet": {"CRATE-T": 66.7, "CRATE-S": 69.2, "CRATE-B": 70.8, "CRATE-L": 71.3, "ViT-T": 71.5, "ViT-S": 72.4},
    "ImageNet ReaL": {"CRATE-T": 74.0, "CRATE-S": 76.0, "CRATE-B": 76.5, "CRATE-L": 77.4, "ViT-T": 78.3, "ViT-S": 78.4},
    "ImageNet → CIFAR-10": {
        "CRATE-T": 95.5, "CRATE-S": 96.0, "CRATE-B": 96.8, "CRATE-L": 97.2, "ViT-T": 96.6, "ViT-S": 97.2,
    },
    "ImageNet → CIFAR-100": {
        "CRATE-T": 78.9, "CRATE-S": 81.0, "CRATE-B": 82.7, "CRATE-L": 83.6, "ViT-T": 81.8, "ViT-S": 83.2,
    },
    "ImageNet → Flowers-102": {
        "CRATE-T": 84.6, "CRATE-S": 87.1, "CRATE-B": 88.7, "CRATE-L": 88.3, "ViT-T": 85.1, "ViT-S": 88.5,
    },
    "ImageNet → Pets": {
        "CRATE-T": 81.4, "CRATE-S": 84.9, "CRATE-B": 85.3, "CRATE-L": 87.4, "ViT-T": 88.5, "ViT-S": 88.6,
    },
}  # fmt: skip
"""Table 1: top-1 accuracy by task."""
PAIRS = [("CRATE-T", "ViT-T"), ("CRATE-B", "ViT-S")]
"""Networks of about the same size."""
BASE = PAPER["ImageNet"]["CRATE-B"]
MILLIONS = {"CRATE-T": 6.09, "CRATE-S": 13.12, "CRATE-B": 22.80, "CRATE-L": 77.64, "ViT-T": 5.72, "ViT-S": 22.05}
WORDS = {
    "eta_0.02": "η = 0.02 (0.1)",
    "eta_0.5": "η = 0.5 (0.1)",
    "lam_0.02": "λ = 0.02 (0.1)",
    "lam_0.5": "λ = 0.5 (0.1)",
    "epochs_90": "0.6 × the epochs",
    "epochs_300": "2 × the epochs",
    "wd_1.0": "weight decay 1.0 (0.5)",
    "wd_0.05": "weight decay 0.05 (0.5)",
    "lr_4.8e-4": "2 × the learning rate",
    "lr_1.2e-4": "½ × the learning rate",
    "mssa_tied": "tied MSSA, without a free output map",
    "prox_mm": "proximal majorisation instead of ISTA",
    "prox_mm_tight": "the same with the tight bound (ours)",
    "softmax_step": "tied, −κγ Y beside κγ MSSA(Y) (ours)",
    "mssa_tied_short": "tied, a step of the same length, without −κγ Y (ours)",
    "gradient_step": "the exact gradient of R^c (ours)",
}
"""The name of a variant in tables."""
