"""The proof of an image: what a backend built is read back, and compared with the plan. Rules R301 and on."""
