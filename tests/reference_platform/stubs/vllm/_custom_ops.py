from sgl_kernel import missing_in

__getattr__ = missing_in(__name__)
