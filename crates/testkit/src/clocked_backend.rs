//! [`ClockedBackend`]: one of two sides of a split network, which computes nothing and takes a known time.
//!
//! It stands in for a device whose work is queued, in tests of the parallel work of two sides. Time is counted, not measured: the host's
//! products move the clock, the device's are queued one after the other, and the host waits when it reads the device's results.
//! Invariant: the same steps always take the same time.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokenmill_backend::{
    Activation, AdapterError, AdapterId, AdapterMatrices, AdapterOperations, Allocation, Attention, Backend,
    BackendError, Carried, Columns, DeltaNet, DeltaNetRows, ExpertInput, ExpertOperations, ForwardBatch,
    HostStep, JoinedRows, KvLayout, LatentOperations, LayerOperations, Linear, MatrixData, Memory, Norm,
    PageCopy, PageGroup, RecurrentOperations, Rope, Routed, Router, RowSet, SampledToken, SequenceMemory,
    ShortConv, Side, SplitOperations, SsmRows, SsmScan, StateLayout, StepOutput, StepShape, StreamOperations,
    StreamsShape, Temperature, Xielu,
};
use tokenmill_gguf::TensorType;

/// The time of a product: a time per row, but at least the time in which its weights are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductTime {
    /// The time per row.
    pub of_row: u64,
    /// The least time.
    pub at_least: u64,
}

/// The clock of two sides.
#[derive(Debug, Default)]
pub struct Clock {
    /// The host's time.
    pub now: u64,
    /// When the device has done all that is queued.
    pub device_ends_at: u64,
    /// Time in which the host computed while the device had work.
    pub shared: u64,
    /// Number of the host's products that succeed before one fails, once; `None` if none fails.
    pub host_fails_after: Option<usize>,
}

impl Clock {
    fn host_works(&mut self, time: u64) -> Result<(), BackendError> {
        self.host_fails_after = match self.host_fails_after {
            Some(0) => {
                self.host_fails_after = None;
                return Err(BackendError::Failed {
                    operation: "a product",
                    source: "it was to fail".into(),
                });
            }
            left => left.map(|n| n - 1),
        };
        self.shared += self.device_ends_at.saturating_sub(self.now).min(time);
        self.now += time;
        Ok(())
    }

    fn device_works(&mut self, time: u64) {
        self.device_ends_at = self.device_ends_at.max(self.now) + time;
    }
}

/// A clock that two sides share.
pub type SharedClock = Arc<Mutex<Clock>>;

/// A side of a split network that computes nothing. All its values are 0, and so is each token.
pub struct ClockedBackend {
    side: Side,
    product: ProductTime,
    clock: SharedClock,
    step: HostStep,
    /// Times at which the steps that were not read yet are done.
    ends: VecDeque<u64>,
}

impl ClockedBackend {
    /// Makes a side without weights.
    pub fn new(side: Side, product: ProductTime, clock: SharedClock) -> Self {
        Self {
            side,
            product,
            clock,
            step: HostStep::default(),
            ends: VecDeque::new(),
        }
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn multiply(&self, n_rows: usize) -> Result<(), BackendError> {
        let time = (self.product.of_row * n_rows as u64).max(self.product.at_least);
        match self.side {
            Side::Host => self.clock().host_works(time),
            Side::Device => {
                self.clock().device_works(time);
                Ok(())
            }
        }
    }
}

impl Memory for ClockedBackend {
    type Matrix = ();
    type Vector = ();
    type Buffer = Vec<f32>;
    type Routes = ();

    fn upload_matrix(&mut self, _: &MatrixData<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn upload_vector(&mut self, _: &[f32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Vec<f32>, BackendError> {
        Ok(vec![0.0; max_rows * width])
    }

    fn alloc_routes(&mut self, _: usize, _: usize, _: usize) -> Result<(), BackendError> {
        Ok(())
    }
}

impl SequenceMemory for ClockedBackend {}

impl AdapterOperations for ClockedBackend {
    fn add_adapter(&mut self, _: AdapterId, _: Arc<AdapterMatrices<()>>, _: f32) -> Result<(), AdapterError> {
        Err(AdapterError::Unsupported { device: Self::NAME })
    }

    fn remove_adapter(&mut self, _: AdapterId) {}

    fn takes_adapters(&self) -> bool {
        false
    }
}

/// Operations that take no time: all except products.
macro_rules! in_no_time {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        $(fn $name(&mut self, $(_: $argument),*) -> Result<(), BackendError> {
            Ok(())
        })*
    };
}

type Rows = Vec<f32>;

impl Backend for ClockedBackend {
    const NAME: &'static str = "a clock";

    fn supports(&self, _: TensorType) -> bool {
        true
    }

    fn bytes_of(&self, _: &Allocation<'_>) -> usize {
        0
    }

    fn works_apart(&self) -> bool {
        self.side == Side::Device
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        Ok(self.step.begin(batch))
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        let end = self.ends.pop_front().expect("a step that was not read");
        let mut clock = self.clock();
        clock.now = clock.now.max(end);
        drop(clock);
        self.step.read(output);
        Ok(())
    }

    fn linear(
        &mut self,
        _: &Linear<(), ()>,
        _: &Rows,
        n_rows: usize,
        _: &mut Rows,
    ) -> Result<(), BackendError> {
        self.multiply(n_rows)
    }

    fn sample(
        &mut self,
        _: &StepShape,
        n_vocab: usize,
        n_embd: usize,
        logits: &mut Rows,
        outputs: &Rows,
    ) -> Result<(), BackendError> {
        let mut first = |_: usize, _: &mut Vec<_>| Ok(SampledToken { id: 0, logprob: None });
        (self.step).finish(logits, n_vocab, outputs, n_embd, Some(&mut first));
        let end = self.clock().device_ends_at;
        self.ends.push_back(end);
        Ok(())
    }

    in_no_time! {
        alloc_kv(&KvLayout);
        alloc_states(&StateLayout);
        copy_pages(PageGroup, &[PageCopy]);
        embed(&(), f32, usize, &mut Rows);
        add_row(&(), usize, usize, &mut Rows);
        add_positions(&(), usize, usize, &mut Rows);
        mean_of_sequences(&StepShape, usize, &Rows, &mut Rows);
        scale_by_position(Temperature, usize, usize, &mut Rows);
        norm(&Norm<()>, &Rows, usize, &mut Rows);
        norm_in_place(&Norm<()>, usize, usize, &mut Rows);
        rope(&Rope<()>, usize, usize, &mut Rows);
        store_kv(usize, usize, &Rows, &Rows);
        attention(&Attention<()>, &StepShape, &Rows, &mut Rows);
        activation(Activation, usize, usize, &mut Rows, Option<&Rows>);
        add(f32, usize, usize, &mut Rows, &Rows);
        gather(RowSet, &StepShape, usize, &Rows, &mut Rows);
        scale_logits(f32, Option<f32>, usize, usize, &mut Rows);
    }
}

impl SplitOperations for ClockedBackend {
    type Entered = ();

    fn begin_part(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.begin_step(batch)
    }

    fn enter_step(&mut self, _: &StepShape) {}

    fn end_part(&mut self, _: &StepShape, _: bool) -> Result<(), BackendError> {
        Ok(())
    }

    fn show_values(
        &mut self,
        buffer: &Rows,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        if self.side == Side::Device {
            let mut clock = self.clock();
            clock.now = clock.now.max(clock.device_ends_at);
        }
        see(&buffer[range])
    }

    fn fill_values(
        &mut self,
        buffer: &mut Rows,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        write(&mut buffer[range])
    }
}

impl ExpertOperations for ClockedBackend {
    fn experts_linear(
        &mut self,
        _: &Linear<(), ()>,
        routed: Routed<'_, Self>,
        _: ExpertInput<'_, Rows>,
        _: &mut Rows,
    ) -> Result<(), BackendError> {
        self.multiply(routed.n_choices())
    }

    in_no_time! {
        route(&Router<()>, usize, &Rows, &mut ());
        combine(Routed<'_, Self>, usize, &Rows, Carried<'_, Rows>, &mut Rows);
    }
}

impl LatentOperations for ClockedBackend {
    fn heads_linear(
        &mut self,
        _: &Linear<(), ()>,
        _: usize,
        n_rows: usize,
        _: &Rows,
        _: &mut Rows,
    ) -> Result<(), BackendError> {
        self.multiply(n_rows)
    }

    in_no_time! {
        join(usize, JoinedRows<'_, Rows>, JoinedRows<'_, Rows>, &mut Rows);
        store_latent(usize, usize, &Rows);
    }
}

impl LayerOperations for ClockedBackend {
    in_no_time! {
        take_columns(Columns<'_, Rows>, usize, usize, &mut Rows);
        xielu(Xielu, usize, usize, &mut Rows);
        cut_below(f32, usize, usize, &mut Rows);
        weigh_choices(Routed<'_, Self>, usize, &mut Rows);
    }
}

impl RecurrentOperations for ClockedBackend {
    in_no_time! {
        short_conv(&ShortConv<()>, &StepShape, &Rows, &mut Rows);
        delta_net(&DeltaNet<()>, &StepShape, DeltaNetRows<'_, Rows>, &mut Rows);
        ssm_scan(&SsmScan<()>, &StepShape, SsmRows<'_, Rows>, &mut Rows);
    }
}

impl StreamOperations for ClockedBackend {
    in_no_time! {
        repeat_rows(StreamsShape, &Rows, &mut Rows);
        match_magnitudes(StreamsShape, &Rows, &mut Rows);
        predict_streams(StreamsShape, &Rows, &mut Rows, &mut Rows);
        correct_streams(StreamsShape, &Rows, &Rows, &mut Rows, &mut Rows);
        add_to_others(StreamsShape, &Rows, &mut Rows);
        multiply_by_row(StreamsShape, &(), &mut Rows);
    }
}
