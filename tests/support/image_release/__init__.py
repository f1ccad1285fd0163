"""Signs images, and attests what is in them and what they were made of. `make images` runs it for our own images.

    python -m image_release --help

What it writes is what `cosign sign --key` and `cosign attest --key` write (cosign 3): Sigstore bundles with a DSSE
envelope around an in-toto statement, kept in the image's registry as its OCI referrers.
"""
