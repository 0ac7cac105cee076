"""The gang's backends side by side."""
