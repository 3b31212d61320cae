"""F2, what serving computes: small ops in C++ for CPUs, built on first use, each with a twin in torch that gives the same."""
