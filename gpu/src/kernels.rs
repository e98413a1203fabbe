//! The kernels' PTX, and the descriptors from which they copy.
