"""Pages: self-contained HTML, drawn from the planner's and the telemetry's values."""
