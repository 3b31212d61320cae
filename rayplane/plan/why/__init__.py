"""Why a plan is as it is: sweeps, arithmetic, what-ifs, answers."""
