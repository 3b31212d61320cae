"""What calibration and running jobs show, and what it says of the predictions."""
