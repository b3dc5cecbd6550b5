"""Run folders, records, and MLflow."""
