//! The timing model against measurements that others published, of kernels so short that the same ones can be written down here.
//!
//! All are of github.com/te42kyfo/gpu-benches at 1c36d509: `gpu-stream`, where each thread loads or stores one number of 8 bytes of each stream
//! and two thread blocks are on a multiprocessor, and `gpu-small-kernels`, a graph of launches that each read the results of the previous one. Decision record
//! 104 has the ratios. A kernel's time is the time of its body, so a ratio tests the model's latencies, bandwidth and the succession of
//! thread blocks.

use tokenmill_ptx_sim::{
    Arguments, Assembled, DeviceMemory, DeviceProfile, LaunchConfig, Module, Residency, Start, estimate,
};

/// The rough size of these kernels: some thirty instructions of 16 bytes.
const ASSEMBLED: Assembled = Assembled {
    n_registers: 16,
    code_bytes: 512,
};

/// Returns a kernel of three buffers and a number of elements: `%d1` to `%d3` are this thread's numbers in them.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {{
         .reg .pred %p<4>; .reg .b32 %r<9>; .reg .f64 %f<9>; .reg .b64 %d<9>;
         ld.param.u64 %d4, [a]; ld.param.u64 %d5, [b]; ld.param.u64 %d6, [c]; ld.param.u32 %r5, [n];
         mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
         setp.ge.u32 %p0, %r3, %r5; @%p0 bra END;
         mad.wide.u32 %d1, %r3, 8, %d4; mad.wide.u32 %d2, %r3, 8, %d5; mad.wide.u32 %d3, %r3, 8, %d6;
         {body}
         END: ret; }}"
    )
}

const READ: &str = "ld.global.f64 %f1, [%d2]; mov.f64 %f2, 0d405EC00000000000; setp.neu.f64 %p1, %f1, %f2;
                    @%p1 bra END; st.global.f64 [%d1], %f1;";
const SCALE: &str = "ld.global.f64 %f1, [%d2]; mov.f64 %f2, 0d3FF3333333333333; mul.rn.f64 %f1, %f1, %f2; st.global.f64 [%d1], %f1;";
const TRIAD: &str = "ld.global.f64 %f1, [%d2]; ld.global.f64 %f3, [%d3]; mov.f64 %f2, 0d3FF3333333333333;
                     fma.rn.f64 %f1, %f1, %f2, %f3; st.global.f64 [%d1], %f1;";

struct Bench {
    device: &'static DeviceProfile,
    memory: DeviceMemory,
    module: Module,
    residency: Residency,
}

impl Bench {
    fn new(device: &str, body: &str) -> Self {
        let mut memory = DeviceMemory::sparse(1 << 34);
        Self {
            device: DeviceProfile::find(device).unwrap(),
            module: Module::load(&kernel(body), &mut memory).unwrap(),
            memory,
            residency: Residency::new(),
        }
    }

    /// GB/s of streams of a GiB, 8 bytes of each a thread, two thread blocks a multiprocessor.
    fn stream(mut self, n_threads: u32, n_streams: u32) -> f64 {
        let buffers = [(); 3].map(|()| self.memory.alloc(1 << 30).unwrap());
        let n = 1 << 27;
        let mut config = LaunchConfig::new([n / n_threads, 1, 1], [n_threads, 1, 1]);
        config.shared_bytes = self.device.shared_bytes / 2 - 2048;
        let arguments = (buffers.iter()).fold(Arguments::new(), |arguments, &at| arguments.ptr(at));
        let estimate = estimate(
            self.module.kernel("k").unwrap(),
            &self.memory,
            &config,
            &arguments.u32(n),
            &ASSEMBLED,
            self.device,
            &mut self.residency,
            &Start::after(self.device),
        )
        .unwrap();
        assert_eq!(estimate.resident_blocks, 2);
        f64::from(n) * f64::from(n_streams) * 8.0 / estimate.us / 1e3
    }

    /// Microseconds from begin to begin of launches that scale `n` numbers.
    fn chain(mut self, n: u32, n_threads: u32) -> f64 {
        let [a, b] = [(); 2].map(|()| self.memory.alloc(1 << 20).unwrap());
        let config = LaunchConfig::new([n / n_threads + 1, 1, 1], [n_threads, 1, 1]);
        let mut us = 0.0;
        for turn in 0..4 {
            let (to, from) = if turn % 2 == 0 { (a, b) } else { (b, a) };
            let estimate = estimate(
                self.module.kernel("k").unwrap(),
                &self.memory,
                &config,
                &Arguments::new().ptr(to).ptr(from).ptr(from).u32(n),
                &ASSEMBLED,
                self.device,
                &mut self.residency,
                &Start::after(self.device),
            )
            .unwrap();
            us = estimate.us + estimate.gap_us;
        }
        us
    }
}

/// Collects ratios of predictions to measurements that are no longer the stated ones.
#[derive(Default)]
struct Changed(Vec<String>);

impl Changed {
    /// Prints a row, and notes a ratio that is not the stated one: the model has changed then, and its errors must be stated again.
    fn compare(&mut self, what: &str, published: f64, predicted: f64, stated: f64) {
        let ratio = predicted / published;
        println!("| {what} | {published} | {predicted:.2} | {ratio:.2} |");
        if (ratio - stated).abs() > 0.0051 {
            self.0.push(format!("{what}: {ratio:.3} and not {stated}"));
        }
    }

    #[track_caller]
    fn check(&self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}

/// GB/s with 32, 256, 512 and 1,024 threads a thread block.
#[test]
fn streams_of_one_load_a_thread_have_the_stated_errors() {
    let mut changed = Changed::default();
    let threads = [32, 256, 512, 1024];
    for (device, name, body, n_streams, measured, stated) in [
        (
            "h100-pcie",
            "read",
            READ,
            1,
            [96.0, 702.0, 1261.0, 1942.0],
            [1.04, 0.93, 0.86, 0.83],
        ),
        (
            "h100-pcie",
            "scale",
            SCALE,
            2,
            [183.0, 1037.0, 1583.0, 1704.0],
            [1.10, 1.27, 1.19, 1.15],
        ),
        (
            "h100-pcie",
            "triad",
            TRIAD,
            3,
            [254.0, 1399.0, 1675.0, 1832.0],
            [1.15, 1.15, 1.11, 1.04],
        ),
        (
            "a100",
            "read",
            READ,
            1,
            [85.0, 619.0, 1122.0, 1769.0],
            [1.03, 0.93, 0.86, 0.82],
        ),
        (
            "a100",
            "scale",
            SCALE,
            2,
            [157.0, 1026.0, 1577.0, 1732.0],
            [1.12, 1.13, 1.10, 1.04],
        ),
        (
            "a100",
            "triad",
            TRIAD,
            3,
            [221.0, 1372.0, 1659.0, 1759.0],
            [1.15, 1.04, 1.04, 1.00],
        ),
    ] {
        for ((n_threads, published), stated) in threads.into_iter().zip(measured).zip(stated) {
            let predicted = Bench::new(device, body).stream(n_threads, n_streams);
            let what = format!("{device}, {name}, {n_threads} threads, GB/s");
            changed.compare(&what, published, predicted, stated);
        }
    }
    changed.check();
}

/// Microseconds a launch, by 256 threads a thread block.
#[test]
fn small_launches_that_follow_each_other_have_the_stated_errors() {
    let mut changed = Changed::default();
    for (device, n, published, stated) in [
        ("h200", 4096, 1.29, 1.15),
        ("h200", 23_490, 1.35, 1.10),
        ("a100", 4096, 1.34, 1.11),
        ("a100", 19_070, 1.47, 1.02),
        ("rtx-4090", 4096, 0.96, 1.20),
        ("rtx-4090", 23_490, 1.06, 1.10),
    ] {
        let predicted = Bench::new(device, SCALE).chain(n, 256);
        changed.compare(
            &format!("{device}, {n} numbers, us"),
            published,
            predicted,
            stated,
        );
    }
    changed.check();
}

/// Four loads of 16 bytes for each thread, one thread block apart, and a sum that is almost never stored: the weight reads of a one-row
/// product.
const READ_WIDE: &str = "mad.lo.u32 %r6, %r1, %r2, 0; shl.b32 %r6, %r6, 2; add.u32 %r6, %r6, %r0;
    mul.wide.u32 %d5, %r6, 16; ld.param.u64 %d4, [b]; add.u64 %d4, %d4, %d5; mul.wide.u32 %d6, %r2, 16;
    ld.global.v2.f64 {%f1, %f2}, [%d4]; add.u64 %d4, %d4, %d6;
    ld.global.v2.f64 {%f3, %f4}, [%d4]; add.u64 %d4, %d4, %d6;
    ld.global.v2.f64 {%f5, %f6}, [%d4]; add.u64 %d4, %d4, %d6;
    ld.global.v2.f64 {%f7, %f8}, [%d4];
    add.rn.f64 %f1, %f1, %f2; add.rn.f64 %f3, %f3, %f4; add.rn.f64 %f5, %f5, %f6; add.rn.f64 %f7, %f7, %f8;
    add.rn.f64 %f1, %f1, %f3; add.rn.f64 %f5, %f5, %f7; add.rn.f64 %f1, %f1, %f5; mov.f64 %f2, 0d405EC00000000000;
    setp.neu.f64 %p1, %f1, %f2; @%p1 bra END; st.global.f64 [%d1], %f1;";

/// Compares one-row products of f16 weights on an H200 with TileOps's measurements (pull requests 243 and 244 of tile-ai/TileOPs), in TB/s
/// including the launch. The simulated kernel reads the same bytes and does nothing else, so it is a lower bound of the time. The bound is
/// too low for small products, most of all for those of a decode step.
#[test]
fn the_floor_of_a_product_of_one_row_has_the_stated_distance_from_what_an_h200_took() {
    let mut changed = Changed::default();
    for (megabytes, published, stated) in [
        (235, 3.47, 1.19),
        (264, 3.80, 1.09),
        (470, 4.02, 1.04),
        (822, 4.26, 0.99),
    ] {
        let n_bytes = megabytes * 1_000_000_u64;
        let us = read(n_bytes);
        let predicted = n_bytes as f64 / us / 1e6;
        changed.compare(
            &format!("h200, {megabytes} MB of weights, TB/s"),
            published,
            predicted,
            stated,
        );
    }
    // 2 MB, in microseconds.
    changed.compare("h200, 2 MB of weights, us", 3.9, read(2_000_000), 0.59);
    changed.check();
}

/// Simulates reading this many bytes in one launch on an H200; returns microseconds, launch included.
fn read(n_bytes: u64) -> f64 {
    let mut bench = Bench::new("h200", READ_WIDE);
    let [a, b] = [8, n_bytes].map(|n_bytes| bench.memory.alloc(n_bytes).unwrap());
    let n_blocks = (n_bytes / (256 * 64)) as u32;
    let estimate = estimate(
        bench.module.kernel("k").unwrap(),
        &bench.memory,
        &LaunchConfig::new([n_blocks, 1, 1], [256, 1, 1]),
        &Arguments::new().ptr(a).ptr(b).ptr(b).u32(u32::MAX),
        &Assembled {
            n_registers: 32,
            ..ASSEMBLED
        },
        bench.device,
        &mut bench.residency,
        &Start::after(bench.device),
    )
    .unwrap();
    estimate.us + estimate.gap_us
}
