//! [`Placed`]: the two backends, their parts, and the side of the next operation.
//!
//! All operations follow one rule: an operation runs on the side of the part entered last or, if its weights
//! are only on the other side, there. Invariant: a side is used only for the parts that the placement gives
//! it, so it allocates for its own parts only.

use std::collections::VecDeque;

use tokenmill_backend::{
    Allocation, BackendError, ForwardBatch, KvLayerShape, KvLayout, MatrixData, MatrixUsage, Memory,
    NetworkPart, PageGroup, Side, SplitOperations, StateLayout, StepOutput, StepShape,
};

use crate::{Kept, Overlap, PlacedBuffer, Placement, StepThresholds, buffer::copy, placement::Sides};

/// A backend made of two: parts of a network on `H`, the host, and the rest on `D`, the device.
pub struct Placed<H: SplitOperations, D: SplitOperations> {
    pub(crate) host: H,
    pub(crate) device: D,
    pub(crate) placement: Placement,
    /// Thresholds above which the device computes the parts that both sides have.
    thresholds: StepThresholds,
    /// The current part of allocations or operations, and its side.
    part: NetworkPart,
    pub(crate) now: Side,
    /// Whether the device computes the parts that both sides have in the current step.
    pub(crate) goes_to_device: bool,
    pub(crate) overlap: Overlap,
    /// Whether tokens see later ones too.
    pub(crate) is_encoder: bool,
    /// The two parts of the current step, if it is cut.
    pub(crate) parts: [ForwardBatch; 2],
    pub(crate) is_cut: bool,
    /// The shape of the current step on each side.
    pub(crate) shapes: [Option<StepShape>; 2],
    /// Shapes of the layers of the KV store, and their indices on each side.
    pub(crate) kv_shapes: Vec<KvLayerShape>,
    kv_places: Vec<[usize; 2]>,
    /// The page groups of each side.
    pub(crate) groups: [Vec<PageGroup>; 2],
    /// Indices of the layers of the store of states on their sides.
    state_places: Vec<usize>,
    pub(crate) results: Results,
    pub(crate) pass: Pass,
}

/// The mode and progress of the current pass over the operations.
pub(crate) struct Pass {
    pub(crate) mode: Mode,
    /// Index of the device's next or open segment: its operations between two borders.
    segment: usize,
    is_open: bool,
}

/// How a pass executes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs them.
    Run,
    /// Records the device's operations and runs none.
    Record,
    /// Runs the host's operations and replays the device's.
    Replay,
}

impl Pass {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            segment: 0,
            is_open: false,
        }
    }
}

/// Results fetched from the device before the caller asked, because the host needed their tokens.
#[derive(Default)]
pub(crate) struct Results {
    /// For each step that ran and was not fetched, its number of parts, each with a result on the device.
    pub(crate) open: VecDeque<usize>,
    pub(crate) taken: VecDeque<Result<StepOutput, BackendError>>,
    /// The tokens of the newest fetched step, 0 for a row without one; `None` if fetching failed.
    pub(crate) newest: Option<Vec<u32>>,
    pub(crate) spare: Option<StepOutput>,
    /// The results of a second part.
    pub(crate) second: StepOutput,
    /// The current step's batch, with the ids of its tokens.
    pub(crate) batch: ForwardBatch,
}

/// Runs an operation on a side: `$own` is its backend, `$of` picks its weights and buffers. It must be the
/// end of the function: if the pass runs nothing, it returns.
macro_rules! on_side {
    ($self:ident, $side:expr, |$own:ident, $of:ident| $run:expr) => {{
        if !$self.runs_on($side)? {
            return Ok(());
        }
        match $side {
            Side::Host => {
                let ($own, $of) = (&mut $self.host, OfHost);
                $run
            }
            Side::Device => {
                let ($own, $of) = (&mut $self.device, OfDevice);
                $run
            }
        }
    }};
}
pub(crate) use on_side;

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Combines two backends that have no weights yet.
    pub fn new(host: H, device: D, placement: Placement) -> Self {
        Self {
            host,
            device,
            thresholds: StepThresholds::of_all(placement.min_device_tokens()),
            placement,
            part: NetworkPart::Common,
            now: Side::Device,
            goes_to_device: false,
            overlap: Overlap::default(),
            is_encoder: false,
            parts: Default::default(),
            is_cut: false,
            shapes: [None; 2],
            kv_shapes: Vec::new(),
            kv_places: Vec::new(),
            groups: [Vec::new(), Vec::new()],
            state_places: Vec::new(),
            results: Results::default(),
            pass: Pass::new(Mode::Run),
        }
    }

    /// Returns the device's backend alone, if the host has nothing to compute.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Changes the placement. Must be called before a load.
    pub fn set_placement(&mut self, placement: Placement) {
        self.thresholds = StepThresholds::of_all(placement.min_device_tokens());
        self.placement = placement;
    }

    /// Sets the number of tokens of a step from which the device computes the feed-forward networks that both
    /// sides have. Results depend on it only through rounding. Recorded segments are dropped, since their
    /// borders change.
    ///
    /// # Panics
    /// If the network was loaded for the device alone.
    pub fn set_thresholds(&mut self, thresholds: StepThresholds) {
        assert!(
            self.placement.min_device_tokens() > 1,
            "both sides have the networks"
        );
        self.thresholds = thresholds;
        self.device.forget_segments();
    }

    /// Chooses the route of the next step from its numbers of tokens and sequences.
    pub(crate) fn choose_route(&mut self, n_tokens: usize, n_seqs: usize) {
        self.goes_to_device = self.thresholds.goes_to_device(n_tokens, n_seqs);
    }

    /// Sets which steps are computed in two parts. If a prompt is cut, results may differ in rounding, as
    /// with different chunks; they do not on backends with independent rows.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.overlap = overlap;
    }

    /// Returns the placement.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the host's backend.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the device's backend.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Copies the first values of a buffer to a side if they are missing there.
    pub(crate) fn bring(
        &mut self,
        side: Side,
        buffer: &PlacedBuffer<H::Buffer, D::Buffer>,
        n_values: usize,
    ) -> Result<(), BackendError> {
        let n_missing = buffer.n_missing(side, n_values);
        if n_missing == 0 {
            return Ok(());
        }
        let (Some(on_host), Some(on_device)) = (&buffer.host, &buffer.device) else {
            return Err(crate::buffer::absent());
        };
        self.leave_device()?;
        if self.pass.mode != Mode::Record {
            copy(
                (&mut self.host, on_host),
                (&mut self.device, on_device),
                side,
                n_missing,
            )?;
        } else if side == Side::Device {
            self.device.will_be_filled(&mut on_device.borrow_mut());
        }
        buffer.brought(n_missing);
        Ok(())
    }

    /// Enters an operation of a side; returns whether the pass runs it.
    pub(crate) fn runs_on(&mut self, side: Side) -> Result<bool, BackendError> {
        if side == Side::Host {
            self.leave_device()?;
            return Ok(self.pass.mode != Mode::Record);
        }
        if self.pass.mode == Mode::Run {
            return Ok(true);
        }
        let is_first = !std::mem::replace(&mut self.pass.is_open, true);
        match self.pass.mode {
            Mode::Record if is_first => self.device.begin_segment()?,
            Mode::Replay if is_first => {
                let shape = self.shape_on(Side::Device);
                self.device.replay_segment(&shape, self.pass.segment)?;
            }
            _ => {}
        }
        Ok(self.pass.mode == Mode::Record)
    }

    /// Enters a border: the device's next operations belong to another segment.
    pub(crate) fn leave_device(&mut self) -> Result<(), BackendError> {
        if std::mem::replace(&mut self.pass.is_open, false) {
            self.pass.segment += 1;
            if self.pass.mode == Mode::Record {
                self.device.end_segment()?;
            }
        }
        Ok(())
    }

    /// Returns the side on which an operation with a weight runs.
    pub(crate) fn side_of<A, B>(&self, weight: Option<&Kept<A, B>>) -> Side {
        match weight {
            Some(weight) if !weight.is_on(self.now) => self.now.other(),
            _ => self.now,
        }
    }

    /// Returns the side of a layer of the KV store, and its index there.
    pub(crate) fn kv_place(&self, kv_idx: usize) -> (Side, usize) {
        let side = self.placement.side(NetworkPart::Kv(kv_idx), true, self.now);
        (side, self.kv_places[kv_idx][side as usize])
    }

    /// Returns the side of a layer of the store of states, and its index there.
    pub(crate) fn state_place(&self, state_idx: usize) -> (Side, usize) {
        let side = self.placement.side(NetworkPart::State(state_idx), true, self.now);
        (side, self.state_places[state_idx])
    }

    /// Returns the shape of the current step on a side.
    pub(crate) fn shape_on(&self, side: Side) -> StepShape {
        self.shapes[side as usize].expect("operations follow the beginning of a step")
    }

    /// Returns the layers of the KV store on a side; their order gives their indices.
    pub(crate) fn kv_layout_of(&self, side: Side, layout: &KvLayout) -> KvLayout {
        let is_here = |kv_idx: &usize| self.placement.sides(NetworkPart::Kv(*kv_idx)).has(side);
        let here: Vec<usize> = (0..layout.layers.len()).filter(is_here).collect();
        KvLayout {
            layers: here.iter().map(|&kv_idx| layout.layers[kv_idx]).collect(),
            groups: here.iter().map(|&kv_idx| layout.groups[kv_idx]).collect(),
            ..layout.clone()
        }
    }

    /// Stores the contents of the KV store and numbers its layers on their sides.
    pub(crate) fn number_kv(&mut self, layout: &KvLayout) {
        self.kv_shapes.clone_from(&layout.layers);
        let mut counts = [0; 2];
        self.kv_places = (0..layout.layers.len())
            .map(|kv_idx| {
                let place = counts;
                for side in Side::ALL {
                    counts[side as usize] +=
                        usize::from(self.placement.sides(NetworkPart::Kv(kv_idx)).has(side));
                }
                place
            })
            .collect();
    }

    /// Returns the layers of the store of states on a side.
    pub(crate) fn state_layout_of(&self, side: Side, layout: &StateLayout) -> StateLayout {
        let is_here = |state_idx: &usize| self.placement.sides(NetworkPart::State(*state_idx)).has(side);
        StateLayout {
            layers: ((0..layout.layers.len()).filter(is_here))
                .map(|state_idx| layout.layers[state_idx])
                .collect(),
            n_states: layout.n_states,
        }
    }

    pub(crate) fn number_states(&mut self, layout: &StateLayout) {
        let mut counts = [0; 2];
        self.state_places = (0..layout.layers.len())
            .map(|state_idx| {
                let side =
                    self.placement
                        .side(NetworkPart::State(state_idx), true, Side::Device) as usize;
                counts[side] += 1;
                counts[side] - 1
            })
            .collect();
    }

    /// Returns the sides that have a matrix: those of its part, and both for a token embedding that is also
    /// the head.
    fn sides_of_matrix(&self, part: NetworkPart, usage: MatrixUsage) -> Sides {
        match usage {
            MatrixUsage::Tied => self.placement.sides(part).with(Side::Device),
            _ => self.placement.sides(part),
        }
    }

    /// Returns the uses of a matrix on one side.
    fn usage_on(&self, side: Side, part: NetworkPart, usage: MatrixUsage) -> MatrixUsage {
        match usage {
            MatrixUsage::Tied if !self.placement.sides(part).has(Side::Device) => match side {
                Side::Host => MatrixUsage::Embedding,
                Side::Device => MatrixUsage::Linear,
            },
            other => other,
        }
    }

    /// Returns the memory of an allocation for a part on one side.
    pub(crate) fn bytes_on(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        let bytes_of = |allocation: &Allocation<'_>| match side {
            Side::Host => self.host.bytes_of(allocation),
            Side::Device => self.device.bytes_of(allocation),
        };
        let is_here = match *allocation {
            Allocation::Matrix { usage, .. } => self.sides_of_matrix(part, usage),
            _ => self.placement.sides(part),
        };
        if !is_here.has(side) {
            return 0;
        }
        match *allocation {
            Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage,
                is_in_file,
            } => bytes_of(&Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage: self.usage_on(side, part, usage),
                is_in_file,
            }),
            Allocation::Workspace(network, limits) => bytes_of(&Allocation::Workspace(
                &self.placement.network_of(side, network),
                limits,
            )),
            _ => bytes_of(allocation),
        }
    }

    /// Creates something on each side that has it.
    fn on_sides<A, B>(
        &mut self,
        sides: Sides,
        on_host: impl FnOnce(&mut H) -> Result<A, BackendError>,
        on_device: impl FnOnce(&mut D) -> Result<B, BackendError>,
    ) -> Result<(Option<A>, Option<B>), BackendError> {
        let host = if sides.has(Side::Host) {
            Some(on_host(&mut self.host)?)
        } else {
            None
        };
        let device = if sides.has(Side::Device) {
            Some(on_device(&mut self.device)?)
        } else {
            None
        };
        Ok((host, device))
    }
}

/// The routes of a step's rows, on the side where they were computed.
pub struct PlacedRoutes<A, B> {
    host: Option<A>,
    device: Option<B>,
}

impl<A, B> PlacedRoutes<A, B> {
    pub(crate) fn host(&self) -> Result<&A, BackendError> {
        self.host.as_ref().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn device(&self) -> Result<&B, BackendError> {
        self.device.as_ref().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn host_mut(&mut self) -> Result<&mut A, BackendError> {
        self.host.as_mut().ok_or_else(crate::buffer::absent)
    }

    pub(crate) fn device_mut(&mut self) -> Result<&mut B, BackendError> {
        self.device.as_mut().ok_or_else(crate::buffer::absent)
    }
}

impl<H: SplitOperations, D: SplitOperations> Memory for Placed<H, D> {
    type Matrix = Kept<H::Matrix, D::Matrix>;
    type Vector = Kept<H::Vector, D::Vector>;
    type Buffer = PlacedBuffer<H::Buffer, D::Buffer>;
    type Routes = PlacedRoutes<H::Routes, D::Routes>;

    fn enter(&mut self, part: NetworkPart) {
        self.part = part;
        self.now = self.placement.side(part, self.goes_to_device, self.now);
    }

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<Self::Matrix, BackendError> {
        let part = self.part;
        let of = |side| MatrixData {
            usage: self.usage_on(side, part, data.usage),
            ..*data
        };
        let (host, device) = (of(Side::Host), of(Side::Device));
        let (host, device) = self.on_sides(
            self.sides_of_matrix(part, data.usage),
            |own| own.upload_matrix(&host),
            |own| own.upload_matrix(&device),
        )?;
        Ok(Kept::new(host, device))
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.upload_vector(values),
            |own| own.upload_vector(values),
        )?;
        Ok(Kept::new(host, device))
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Self::Buffer, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.alloc(max_rows, width),
            |own| own.alloc(max_rows, width),
        )?;
        Ok(PlacedBuffer::new(host, device))
    }

    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<Self::Routes, BackendError> {
        let (host, device) = self.on_sides(
            self.placement.sides(self.part),
            |own| own.alloc_routes(max_rows, n_experts, n_used),
            |own| own.alloc_routes(max_rows, n_experts, n_used),
        )?;
        Ok(PlacedRoutes { host, device })
    }
}
