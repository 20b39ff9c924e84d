//! The front door: a model file is loaded on the device that suits it.
//!
//! [`load`] takes an opened [`Model`](tokenmill_model::Model) and picks the device; [`tokenmill_model::Model::load_on`]
//! below it takes any [`Backend`](tokenmill_backend::Backend).
#![forbid(unsafe_code)]

mod device;
mod error;
mod gpu;

pub use device::{Compute, Device, DeviceError, Loaded, LoadedDevice, load};
pub use error::Error;
#[cfg(not(feature = "cuda"))]
pub use gpu::CudaLeftOut;
pub use gpu::has_gpu_driver;
#[cfg(feature = "cuda")]
pub use gpu::load_on_gpu;
