//! A device made of two: parts of a network on the host, the rest on a device.
//!
//! A network that does not fit on a device is computed by both. [`Placement`] assigns parts to sides: whole
//! layers, mixers or feed-forward networks of layers, experts. Keys, values and recurrent states are on the
//! side of their layer's mixer. [`Placed`] is a [`ProgramDevice`](tokenmill_backend::program::ProgramDevice)
//! like any other: the network's program, the scheduler and the prefix cache need no changes, and page numbers
//! mean the same on both sides.
//!
//! **The key decision:** a pass over the program gives each operation a side and inserts a copy where one side
//! reads a value that the other wrote; a router runs the result. So there is a border wherever two consecutive
//! parts are on different sides, and it costs a copy of the rows of hidden states that cross it.
//!
//! ```
//! use tokenmill_backend::{AttentionShape, KvStoreOfLayer, LayerShape, NetworkShape, Side};
//! use tokenmill_placed::Placement;
//!
//! let layer = |idx| LayerShape {
//!     attention: Some(AttentionShape { n_heads: 4, n_kv_heads: 2, head_dim_k: 8, head_dim_v: 8 }),
//!     kv: Some(KvStoreOfLayer { idx, is_owner: true }),
//!     ..LayerShape::default()
//! };
//! let network = NetworkShape { n_embd: 32, layers: (0..4).map(layer).collect(), has_streams: false, reads_hidden: false };
//!
//! // The last three layers on the device, and the first with its keys and values on the host.
//! let placement = Placement::last_layers(&network, 3);
//! assert_eq!(placement.layers()[0].mixer, Side::Host);
//! assert_eq!(placement.layers()[1].mixer, Side::Device);
//! ```
//!
//! A network divided among several devices of one kind, each with a part of every layer, is a
//! [`GroupExecutor`].
#![forbid(unsafe_code)]

mod bandwidths;
mod device;
mod group;
mod overlap;
mod pass;
mod placed;
mod placement;
mod programs;
mod request;
mod results;
mod retreat;
mod router;
mod schedule;
mod step;
mod step_thresholds;
mod traffic;

pub use bandwidths::{Bandwidths, BandwidthsError};
pub use group::{GroupExecutor, GroupRank};
pub use overlap::Overlap;
pub use placed::Placed;
pub use placement::{LayerPlacement, Placement};
pub use request::{BatchThreshold, DeviceLayers, PartsRequest, PartsRequestError, PlacementRequest};
pub use retreat::{Candidate, Retreat, n_accepted, ranked};
pub use step_thresholds::StepThresholds;
pub use traffic::{LayerReads, TokenReads, Traffic};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
