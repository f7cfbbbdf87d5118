"""Operations on a project: publish, promote, generate, evaluate champions again, audit, and send alerts."""
