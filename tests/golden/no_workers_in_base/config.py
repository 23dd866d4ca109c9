_base_ = './base.py'
work_dir = 'somewhere'
