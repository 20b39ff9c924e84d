//! [`Tower`]: a loaded image encoder on one of the backends that compute in host memory.
//!
//! It is not an executor: its input is pixels and its output is rows. Invariant: as for executors, its code is compiled in
//! this crate.

use tokenmill_backend::{Backend, Memory};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{ImageGrid, LoadError, VisionError, VisionFile, VisionShape, VisionTower};

use super::Compiled;
use crate::NaiveBackend;

/// A loaded image encoder.
pub trait Tower {
    /// Returns the shapes of its input and output.
    fn shape(&self) -> &VisionShape;

    /// Computes the rows of an image.
    ///
    /// # Errors
    /// As [`VisionTower::encode`].
    fn encode(&mut self, pixels: &[f32], grid: &ImageGrid) -> Result<Vec<f32>, VisionError>;
}

impl<B: Backend + Memory<Buffer = Vec<f32>>> Tower for VisionTower<B> {
    fn shape(&self) -> &VisionShape {
        self.shape()
    }

    fn encode(&mut self, pixels: &[f32], grid: &ImageGrid) -> Result<Vec<f32>, VisionError> {
        self.encode(pixels, grid)
    }
}

/// A backend that image encoders are compiled for in this crate.
pub trait CompiledTower: Compiled {
    /// Loads an encoder.
    ///
    /// # Errors
    /// As [`VisionFile::load_on`].
    fn load_tower(self, file: &VisionFile) -> Result<Box<dyn Tower>, LoadError>;
}

macro_rules! compile {
    ($($backend:ty),* $(,)?) => {
        $(impl CompiledTower for $backend {
            #[inline(never)]
            fn load_tower(self, file: &VisionFile) -> Result<Box<dyn Tower>, LoadError> {
                Ok(Box::new(file.load_on(self)?))
            }
        })*
    };
}

compile! { NaiveBackend, CpuBackend }

/// Loads an image encoder.
///
/// # Errors
/// As [`VisionFile::load_on`].
pub fn tower(file: &VisionFile, backend: impl CompiledTower) -> Result<Box<dyn Tower>, LoadError> {
    backend.load_tower(file)
}
