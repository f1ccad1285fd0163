"""What every room may use of the process it runs in: forks, tasks, spans, installed extras."""
