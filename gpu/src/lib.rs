//! Objects in GPU memory: the kernels that write, publish and read them, and their launches.

pub mod kernels;
