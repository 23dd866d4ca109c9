"""Pure policy: findings, model and host limits in, setting changes out."""
