"""The documented mechanisms, the catalog that says what each of them does to data, and the attacks that audit them."""

import os

# torch's products (MKL) may round a row by where it stands: on some processors one of 49 numbers, in four ways. This
# asks for one way, whatever the alignment, at the same speed; it is read at the first product of the process.
os.environ.setdefault("MKL_CBWR", "AUTO")
