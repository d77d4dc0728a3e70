"""Effects: state, ledger, clock and publishing of one running job."""
