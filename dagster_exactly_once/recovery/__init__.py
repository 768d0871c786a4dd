"""Recovery as a job: brings a sink to rest without starting its stream, and reports its findings and results."""
