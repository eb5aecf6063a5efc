"""What people run at batch 1 today: public architectures with seeded weights, carried state as inputs and outputs."""
