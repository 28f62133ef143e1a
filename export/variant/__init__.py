"""A model's variant of lower precision or for an accelerator, with its error beside the original: `export.variant`."""
