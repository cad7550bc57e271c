"""Speed and memory of the paper's pseudocode, opencrate and timm's ViT, measured once their results agree."""
