//! The host executor: the operations of programs on a CPU.
//!
//! It takes typed bytes, buffers and numbers, and knows neither a model nor a file. A [`Host`] is a thread
//! pool and the instruction sets to use; operations are functions that borrow it:
//!
//! | operations | items |
//! |---|---|
//! | weights, packed for the instruction set | [`Matrix`], [`linear`], [`linear_group`], [`linear_gated`], [`embed`] |
//! | norms | [`rms_norm`], [`rms_norm_in_place`], [`layer_norm`] |
//! | positions | [`RopeAngles`], [`rope`] |
//! | activations and sums | [`gated`], [`activate`], [`add`], [`add_scaled`], [`scale`] |
//! | attention | [`KvStore`], [`attention`] |
//! | latent attention | [`heads_linear`] |
//! | recurrent layers | [`StateStore`], [`short_conv`], [`delta_net`], [`ssm_scan`] |
//! | the machine's limits, for comparison | [`ReadBuffer`], [`multiply_bytes`], [`product_instructions`] |
//!
//! **The key decision:** results do not depend on the rest of the batch. Every output element is reduced in
//! one order over K, fixed by positions alone. It depends neither on the batch nor on the thread count, nor
//! on the instruction set if the arithmetic is integer. Attention splits the context at fixed absolute
//! positions and reads K and V as stored.
//!
//! ```
//! use tokenmill_cpu_exec::{Host, Matrix, Workspace, linear};
//! use tokenmill_gguf::TensorType;
//! use tokenmill_quant::CpuFeatures;
//!
//! let host = Host::new(2, CpuFeatures::detect())?;
//! let mut workspace = Workspace::new(&host);
//!
//! let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|w| w.to_le_bytes()).collect();
//! let matrix = Matrix::pack(&host, TensorType::F32, 3, 2, &weights)?;
//! let mut out = [0.0; 3];
//! linear(&host, &mut workspace, &[10.0, 1.0], &matrix, &mut out);
//! assert_eq!(out, [12.0, 34.0, 56.0]);
//! # Ok::<(), tokenmill_cpu_exec::CpuExecError>(())
//! ```

#![deny(unsafe_code)]

mod activations;
mod adapt;
mod attention;
mod backend;
mod embed;
mod error;
mod experts;
mod host;
mod kv;
mod limits;
mod linear;
mod matrix;
mod ops;
mod places;
#[expect(
    unsafe_code,
    reason = "the island: jobs borrowed by other threads, and buffers dealt to them"
)]
mod pool;
mod read_speed;
mod routes;
mod states;
mod thread_scratch;
mod workspace;
mod zeroed;

pub use attention::{AttentionBatch, attention};
pub use backend::{AwakeThreads, CpuBackend, CpuVector, InputObserver, ProductInput, RouteObserver};
pub use embed::embed;
pub use error::CpuExecError;
pub use experts::{combine, experts_gated, experts_linear, heads_linear, weigh_choices};
pub use host::Host;
pub use kv::KvStore;
pub use limits::{ReadBuffer, multiply_bytes, product_instructions};
pub use linear::{Bias, LinearTarget, linear, linear_gated, linear_group};
pub use matrix::Matrix;
pub use ops::{
    activation::{activate, gated},
    delta_net::delta_net,
    elementwise::{add, add_scaled, scale, soft_cap},
    norm::{layer_norm, rms_norm, rms_norm_in_place},
    rope::{RopeAngles, rope},
    rows::{join_rows, take_columns},
    short_conv::short_conv,
    sparsity::cut_below,
    ssm_scan::ssm_scan,
    streams::{
        add_to_others, correct_streams, match_magnitudes, multiply_by_row, predict_streams, repeat_rows,
    },
    xielu::xielu,
};
pub use places::{CpuList, Numa, Places, PlacesError};
pub use pool::{Entered, Pool};
pub use read_speed::ReadSpeed;
pub use routes::Routes;
pub use states::{StateStore, StepStates};
pub use workspace::{StepSizes, Workspace, WorkspaceSizes};
pub use zeroed::zeroed;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
