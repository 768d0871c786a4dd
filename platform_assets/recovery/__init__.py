"""Recovery as a job: bring a sink to rest without starting its stream, and say what was found and done."""
