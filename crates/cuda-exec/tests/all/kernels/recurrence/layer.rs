//! [`Layer`]: a recurrent layer under test, and the [`Step`]s that it is launched with.

use tokenmill_ptx_sim::{Counters, DevicePtr, SECTOR_BYTES};
use tokenmill_testkit::Random;

use crate::kernels::bench::Sim;

const NO_SLOT: u32 = u32::MAX;
/// Slots of each sequence: two for its state, one for a snapshot, one that must stay unchanged.
const SLOTS: usize = 4;
/// Allows for rounding in f32: states add up over some forty tokens.
const TOLERANCE: f64 = 2e-5;

/// Tokens of a chunk, which begins at a multiple of this number.
const CHUNK: usize = 16;

/// The sequences of a launch. A token's position is its row of the inputs.
pub(super) struct Step {
    /// Rows of the inputs that the step uses, sequence after sequence.
    tokens: Vec<usize>,
    pub(super) seq_starts: Vec<u32>,
    pub(super) records: Vec<[u32; 4]>,
    /// Whether kernels may take whole chunks at once.
    pub(super) in_chunks: bool,
}

impl Step {
    pub(super) fn new() -> Self {
        Self {
            tokens: Vec::new(),
            seq_starts: vec![0],
            records: Vec::new(),
            in_chunks: true,
        }
    }

    pub(super) fn push(
        &mut self,
        tokens: std::ops::Range<usize>,
        from: u32,
        to: u32,
        save: Option<(usize, u32)>,
    ) {
        let first = self.tokens.len();
        let [after, slot] = save.map_or([NO_SLOT; 2], |(at, slot)| [(first + at) as u32, slot]);
        self.tokens.extend(tokens);
        self.seq_starts.push(self.tokens.len() as u32);
        self.records.push([from, to, after, slot]);
    }

    pub(super) fn n_seqs(&self) -> usize {
        self.records.len()
    }

    pub(super) fn longest(&self) -> usize {
        let lens = self.seq_starts.windows(2).map(|pair| pair[1] - pair[0]);
        lens.max().unwrap_or(0) as usize
    }

    /// Returns the number of output rows: a sequence that pads the step has one too.
    fn n_rows(&self) -> usize {
        self.tokens.len().max(self.n_seqs())
    }

    /// Returns the step's rows of an input.
    pub(super) fn rows(&self, sim: &mut Sim, input: &[f32], width: usize) -> DevicePtr {
        let rows = |&token: &usize| input[token * width..][..width].iter().copied();
        sim.f32s(&self.tokens.iter().flat_map(rows).collect::<Vec<_>>())
    }

    pub(super) fn device(&self, sim: &mut Sim) -> [DevicePtr; 2] {
        [sim.u32s(&self.seq_starts), sim.u32s(self.records.as_flattened())]
    }

    pub(super) fn positions(&self, sim: &mut Sim) -> DevicePtr {
        sim.u32s(&self.tokens.iter().map(|&token| token as u32).collect::<Vec<_>>())
    }

    /// Returns whether the operations would choose a launch that takes chunks.
    pub(super) fn takes_chunks(&self, lanes: usize) -> bool {
        self.in_chunks && self.longest() >= CHUNK && (2..=16).contains(&lanes)
    }
}

/// A recurrent layer under test.
pub(super) struct Layer<'a> {
    pub(super) name: String,
    /// Number of values of an output row and of a sequence's state, and the state's place in a slot with its size.
    pub(super) out_width: usize,
    pub(super) state_len: usize,
    pub(super) state_start: usize,
    pub(super) stride: usize,
    /// Launches the kernel: the step, the slots, the outputs.
    pub(super) launch: &'a dyn Fn(&mut Sim, &Step, DevicePtr, DevicePtr) -> Counters,
    /// Whether steps must not divide chunks to get the same bits.
    pub(super) has_chunks: bool,
    /// Formula of one token.
    pub(super) token: &'a dyn Fn(&mut [f64], usize) -> Vec<f64>,
}

impl Layer<'_> {
    pub(super) fn check(&self, random: &mut Random) {
        self.check_step(random, &[5, 1, 40, 3]);
        self.check_step(random, &[1, 1, 0]);
        self.check_step(random, &[34]);
        self.check_step(random, &[7, 57]);
        self.check_company(random);
    }

    /// Counts the costs of a prompt of whole chunks, token by token and in chunks.
    fn costs(&self, n_tokens: usize) -> [Counters; 2] {
        [false, true].map(|in_chunks| {
            let mut sim = Sim::new();
            let slots = sim.f32s(&vec![0.5; SLOTS * self.stride]);
            let y = sim.room(n_tokens * self.out_width * 4);
            let mut step = Step::new();
            step.push(0..n_tokens, 0, 0, None);
            step.in_chunks = in_chunks;
            (self.launch)(&mut sim, &step, slots, y)
        })
    }

    /// Asserts limits on the instructions, and the bytes from and to memory, of a prompt's token in chunks.
    pub(super) fn check_costs(&self, most_instructions: u64, most_bytes: u64) {
        const N: u64 = 64;
        let [steps, chunks] = self.costs(N as usize);
        let instructions = |counters: &Counters| counters.warp_instructions() / N;
        let bytes =
            |counters: &Counters| (counters.loads.sectors + counters.stores.sectors) * SECTOR_BYTES / N;
        println!(
            "{}: {} warp instructions and {} bytes a token, in chunks {} and {}; passes over shared memory {}, {}; conflicts {}",
            self.name,
            instructions(&steps),
            bytes(&steps),
            instructions(&chunks),
            bytes(&chunks),
            steps.shared.wavefronts / N,
            chunks.shared.wavefronts / N,
            chunks.bank_conflicts() / N,
        );
        assert!(
            instructions(&chunks) <= most_instructions,
            "{}",
            instructions(&chunks)
        );
        assert!(bytes(&chunks) <= most_bytes, "{}", bytes(&chunks));
    }

    /// Computes the step in f64 from the slots' values, and compares outputs and slots.
    fn check_step(&self, random: &mut Random, lens: &[usize]) {
        let n_slots = lens.len() * SLOTS;
        let before = random.values(n_slots * self.stride);
        let mut step = Step::new();
        let mut first = 0;
        for (seq_idx, &len) in lens.iter().enumerate() {
            let slot = (seq_idx * SLOTS) as u32;
            if len == 0 {
                step.push(0..0, NO_SLOT, NO_SLOT, None);
                continue;
            }
            let from = if random.below(3) == 0 { NO_SLOT } else { slot };
            let to = slot + random.below(2) as u32;
            let save = (random.below(3) > 0).then(|| (random.below(len), slot + 2));
            step.push(first..first + len, from, to, save);
            first += len;
        }
        let mut expected_slots: Vec<f64> = before.iter().map(|&x| f64::from(x)).collect();
        let mut expected = Vec::new();
        for (record, bounds) in step.records.iter().zip(step.seq_starts.windows(2)) {
            let [from, to, after, save] = *record;
            let part = |slot: u32| {
                let start = slot as usize * self.stride + self.state_start;
                start..start + self.state_len
            };
            let mut state = match from {
                NO_SLOT => vec![0.0; self.state_len],
                _ => expected_slots[part(from)].to_vec(),
            };
            if bounds[0] == bounds[1] {
                expected.extend(vec![0.0; self.out_width]);
                continue;
            }
            for at in bounds[0]..bounds[1] {
                expected.extend((self.token)(&mut state, step.tokens[at as usize]));
                if at == after {
                    expected_slots[part(save)].copy_from_slice(&state);
                }
            }
            expected_slots[part(to)].copy_from_slice(&state);
        }
        let mut sim = Sim::new();
        let slots = sim.f32s(&before);
        let y = sim.room(expected.len() * 4);
        (self.launch)(&mut sim, &step, slots, y);
        self.assert_close("outputs", &sim.read_f32s(y, expected.len()), &expected);
        self.assert_close("slots", &sim.read_f32s(slots, before.len()), &expected_slots);
    }

    /// Asserts that a sequence gets the same bits in one step among others and token by token alone.
    fn check_company(&self, random: &mut Random) {
        let n_tokens = 37;
        let before = random.values(2 * SLOTS * self.stride);
        let mut sim = Sim::new();
        let slots = sim.f32s(&before);
        let mut step = Step::new();
        step.push(40..43, 0, 1, None);
        step.push(0..n_tokens, 4, 4, None);
        let y = sim.room(step.n_rows() * self.out_width * 4);
        (self.launch)(&mut sim, &step, slots, y);
        let together = sim.read_f32s(y, step.n_rows() * self.out_width)[3 * self.out_width..].to_vec();
        let state_together = sim.read_f32s(slots, before.len())[4 * self.stride..].to_vec();

        let slots = sim.f32s(&before);
        let (mut alone, mut at) = (Vec::new(), 0);
        while at < n_tokens {
            let mut len = [1, 1, 4, 9][random.below(4)].min(n_tokens - at);
            if self.has_chunks && n_tokens - at >= CHUNK {
                len = CHUNK;
            }
            let mut step = Step::new();
            step.push(at..at + len, 4, 4, None);
            let y = sim.room(len * self.out_width * 4);
            (self.launch)(&mut sim, &step, slots, y);
            alone.extend(sim.read_f32s(y, len * self.out_width));
            at += len;
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&alone), bits(&together), "{}", self.name);
        let state_alone = sim.read_f32s(slots, before.len())[4 * self.stride..].to_vec();
        assert_eq!(bits(&state_alone), bits(&state_together), "{}", self.name);
    }

    #[track_caller]
    fn assert_close(&self, what: &str, found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= TOLERANCE * (1.0 + expected.abs()),
                "{}: {what}: element {index} is {found}, expected {expected}",
                self.name
            );
        }
    }
}
