//! A backend made of two: parts of a network on the host, the rest on a device.
//!
//! A network that does not fit on a device is computed by both. [`Placement`] assigns parts to sides: whole
//! layers, mixers or feed-forward networks of layers, experts. Keys, values and recurrent states are on the
//! side of their layer's mixer. [`Placed`] is a [`Backend`](tokenmill_backend::Backend) like any other: the
//! forward pass, the scheduler and the prefix cache need no changes, and page numbers mean the same on both
//! sides.
//!
//! **The key decision:** the forward pass announces the next part, [`Placed`] runs its operations on the
//! part's side, and buffers are copied when an operation reads on one side what the other wrote. So there is
//! a border wherever two consecutive parts are on different sides, and it costs a copy of the rows of hidden
//! states that cross it; there is no second forward pass.
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
mod buffer;
mod experts;
mod group;
mod kept;
mod latent;
mod layers;
mod operations;
mod overlap;
mod placed;
mod placement;
mod program_device;
mod recurrence;
mod request;
mod retreat;
mod sequences;
mod step;
mod step_thresholds;
mod streams;
mod traffic;

pub use bandwidths::{Bandwidths, BandwidthsError};
pub use buffer::PlacedBuffer;
pub use group::{GroupExecutor, GroupRank};
pub use kept::Kept;
pub use overlap::Overlap;
pub use placed::{Placed, PlacedRoutes};
pub use placement::{LayerPlacement, Placement};
pub use request::{BatchThreshold, DeviceLayers, PartsRequest, PartsRequestError, PlacementRequest};
pub use retreat::{Candidate, Retreat, n_accepted, ranked};
pub use step_thresholds::StepThresholds;
pub use traffic::{LayerReads, TokenReads, Traffic};

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
