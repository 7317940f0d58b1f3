"""What follows the commit log or looks after its files: reput, catching up, scrubbing, cleaning."""
