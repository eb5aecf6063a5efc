"""The paper's models (Table 1), today's and some of GraphTurbo's: torch modules and ONNX files with seeded weights."""
