"""What is promised: neighbours, guarantees, calibration, the ledger, exact noise."""
