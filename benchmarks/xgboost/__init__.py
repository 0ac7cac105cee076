"""Our XGBoost estimators beside ``xgboost.spark`` and bare XGBoost."""
