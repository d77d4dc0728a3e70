"""What a plan promises and how well it will answer: reads plans and public samples."""
