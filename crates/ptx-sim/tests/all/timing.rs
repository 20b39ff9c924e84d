//! The timing model on kernels whose time follows from the figures of the device by arithmetic.

use std::fmt::Write;

use tokenmill_ptx_sim::{
    Arguments, Assembled, DeviceMemory, DeviceProfile, DevicePtr, Estimate, LaunchConfig, Limiter, Module,
    Residency, Start, estimate,
};

/// Clocks besides those that a test counts: addresses before, the exit after.
const MORE: f64 = 40.0;
/// The last result of a chain is not waited for.
const LESS: f64 = 40.0;

fn h100() -> &'static DeviceProfile {
    DeviceProfile::find("h100").unwrap()
}

fn clocks(estimate: &Estimate) -> f64 {
    estimate.us * h100().clock_ghz * 1e3
}

/// A device with one buffer, and a kernel of one argument: `%d0` is the buffer, `%r0` the thread, `%r8` shared memory.
struct Bench {
    memory: DeviceMemory,
    module: Module,
    data: DevicePtr,
    residency: Residency,
}

impl Bench {
    fn new(body: &str) -> Self {
        let ptx = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 a) {{ .shared .align 16 .b8 s[16384];
             .reg .pred %p<4>; .reg .b32 %r<600>; .reg .f32 %f<600>; .reg .b64 %d<300>;
             ld.param.u64 %d0, [a]; mov.u32 %r0, %tid.x; mov.u32 %r9, %ctaid.x; mov.u32 %r8, s;\n{body}\nret; }}"
        );
        let mut memory = DeviceMemory::sparse(1 << 34);
        let module = Module::load(&ptx, &mut memory).unwrap();
        let data = memory.alloc(1 << 30).unwrap();
        Self {
            memory,
            module,
            data,
            residency: Residency::new(),
        }
    }

    fn estimate(&mut self, n_blocks: u32, n_threads: u32, n_registers: u32) -> Estimate {
        self.estimate_from(n_blocks, n_threads, n_registers, &Start::after(h100()))
    }

    fn estimate_from(&mut self, n_blocks: u32, n_threads: u32, n_registers: u32, start: &Start) -> Estimate {
        let assembled = Assembled::without_code(n_registers);
        self.estimate_assembled([n_blocks, n_threads], assembled, start)
    }

    fn estimate_assembled(
        &mut self,
        [n_blocks, n_threads]: [u32; 2],
        assembled: Assembled,
        start: &Start,
    ) -> Estimate {
        let config = LaunchConfig::new([n_blocks, 1, 1], [n_threads, 1, 1]);
        estimate(
            self.module.kernel("k").unwrap(),
            &self.memory,
            &config,
            &Arguments::new().ptr(self.data),
            &assembled,
            h100(),
            &mut self.residency,
            start,
        )
        .unwrap()
    }
}

#[track_caller]
fn assert_clocks(estimate: &Estimate, expected: f64) {
    let found = clocks(estimate);
    assert!(
        (expected - LESS..expected + MORE).contains(&found),
        "{found} clocks, expected about {expected}"
    );
}

fn repeat(n: usize, line: impl Fn(usize) -> String) -> String {
    (0..n).fold(String::new(), |mut text, index| {
        writeln!(text, "{}", line(index)).unwrap();
        text
    })
}

#[test]
fn dependent_arithmetic_takes_its_latency_each() {
    let body = repeat(256, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned());
    assert_clocks(&Bench::new(&body).estimate(1, 32, 32), 256.0 * 4.0);
}

#[test]
fn independent_arithmetic_takes_a_slot_each() {
    let body = repeat(512, |index| format!("fma.rn.f32 %f{}, %f0, %f0, %f0;", index + 1));
    assert_clocks(&Bench::new(&body).estimate(1, 32, 32), 512.0);
    // Four schedulers: four warps take the time of one, eight of two.
    assert_clocks(&Bench::new(&body).estimate(1, 128, 32), 512.0);
    let eight = Bench::new(&body).estimate(1, 256, 32);
    assert_clocks(&eight, 1024.0);
    assert!(eight.issue_share > 0.95);
    // Integers have half as many units, of which additions have two kinds.
    let integers = |f: &str| {
        let body = repeat(512, |index| format!("{f} %r{}, %r0, %r0;", index + 10));
        Bench::new(&body).estimate(1, 32, 32)
    };
    assert_clocks(&integers("xor.b32"), 1024.0);
    assert_clocks(&integers("add.s32"), 512.0);
}

#[test]
fn shuffles_wait_for_each_other_and_share_a_unit() {
    let chain = repeat(64, |_| "shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1;".to_owned());
    assert_clocks(&Bench::new(&chain).estimate(1, 32, 32), 64.0 * 24.0);
    let independent = repeat(64, |index| {
        format!("shfl.sync.bfly.b32 %r{}, %r0, 1, 31, -1;", index + 10)
    });
    // Sixteen warps: a shuffle a clock for all schedulers together.
    assert_clocks(&Bench::new(&independent).estimate(1, 512, 32), 16.0 * 64.0);
}

/// Loads that each take their address from the one before, a page apart.
fn chase(n: usize) -> String {
    let step = repeat(n, |_| {
        "ld.global.u64 %d1, [%d2]; add.s64 %d2, %d2, %d1; add.s64 %d2, %d2, 4096;".to_owned()
    });
    format!("add.s64 %d2, %d0, 0;\n{step}")
}

#[test]
fn dependent_loads_take_the_latency_of_where_they_come_from() {
    let device = h100();
    let mut bench = Bench::new(&chase(32));
    // Two additions of two instructions each are between two loads; the latency includes the load's own slot.
    let step = 2.0 * 8.0;
    let cold = bench.estimate(1, 32, 32);
    assert_clocks(&cold, 32.0 * (device.latency.dram + step));
    assert_eq!(cold.limiter, Limiter::Blocks);
    assert!(cold.in_flight <= 32.0 && cold.in_flight_peak <= 32.0);
    // Bytes that an earlier launch left in L2 come from there.
    let warm = bench.estimate(1, 32, 32);
    assert_clocks(&warm, 32.0 * (device.latency.l2 + step));
    assert!(warm.dram_bytes == 0.0 && cold.dram_bytes > 0.0);
}

#[test]
fn what_is_loaded_again_comes_from_l1() {
    let again = repeat(32, |_| {
        "ld.global.u64 %d1, [%d2]; add.s64 %d2, %d2, %d1;".to_owned()
    });
    let body = format!("add.s64 %d2, %d0, 0;\n{again}");
    let device = h100();
    let expected = device.latency.dram + 31.0 * device.latency.l1 + 32.0 * 8.0;
    assert_clocks(&Bench::new(&body).estimate(1, 32, 32), expected);
}

#[test]
fn independent_loads_overlap() {
    let loads = |n: usize| {
        let loads = repeat(n, |index| {
            format!("ld.global.f32 %f{}, [%d1+{}];", index + 10, 4096 * index)
        });
        let sums = repeat(n, |index| format!("add.f32 %f1, %f1, %f{};", index + 10));
        format!("mad.wide.u32 %d1, %r0, 4, %d0;\n{loads}{sums}")
    };
    let device = h100();
    // Two clocks of the way to L2 for the 128 bytes of each load, and a chain of sums after them.
    let estimate = Bench::new(&loads(16)).estimate(1, 32, 32);
    assert_clocks(&estimate, device.latency.dram + 16.0 * 2.0 + 4.0);
    assert_eq!(estimate.in_flight_peak, 16.0 * 128.0);
    // Each sum may directly follow its load: the assembler would move the loads up.
    let mixed = repeat(16, |index| {
        format!(
            "ld.global.f32 %f2, [%d1+{}]; add.f32 %f1, %f1, %f2;",
            4096 * index
        )
    })
    .replace("%f2", "%f3");
    let body = format!("mad.wide.u32 %d1, %r0, 4, %d0;\n{mixed}");
    // One register for all: no order helps.
    let serial = Bench::new(&body).estimate(1, 32, 32);
    assert!(clocks(&serial) > 16.0 * device.latency.dram);
    let renamed = repeat(16, |index| {
        format!(
            "ld.global.f32 %f{0}, [%d1+{1}]; add.f32 %f1, %f1, %f{0};",
            index + 10,
            4096 * index
        )
    });
    let body = format!("mad.wide.u32 %d1, %r0, 4, %d0;\n{renamed}");
    assert_eq!(Bench::new(&body).estimate(1, 32, 32), estimate);
}

#[test]
fn shared_memory_takes_a_pass_for_each_conflict() {
    let load = |stride: u32| {
        let chain = repeat(64, |_| {
            "ld.shared.u32 %r2, [%r1]; add.s32 %r1, %r1, %r2;".to_owned()
        });
        Bench::new(&format!("mad.lo.u32 %r1, %r0, {stride}, %r8;\n{chain}")).estimate(1, 32, 32)
    };
    let device = h100();
    let step = device.latency.shared + device.latency.arithmetic;
    assert_clocks(&load(4), 64.0 * step);
    assert_clocks(&load(8), 64.0 * (step + 1.0));
    assert_clocks(&load(128), 64.0 * (step + 31.0));
}

#[test]
fn a_barrier_waits_for_the_last_warp() {
    let work = repeat(256, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned());
    let body = format!(
        "setp.ge.u32 %p0, %r0, 32;\n@%p0 bra BEHIND;\n{work}BEHIND:\nbar.sync 0;\n{}",
        work.replace("%f1", "%f3")
    );
    let device = h100();
    let expected = 2.0 * 256.0 * 4.0 + device.latency.barrier;
    assert_clocks(&Bench::new(&body).estimate(1, 64, 32), expected);
}

#[test]
fn thread_blocks_that_do_not_fit_wait_for_their_turn() {
    let body = repeat(256, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned());
    // 255 registers: a thread block of 256 threads a multiprocessor.
    let one = Bench::new(&body).estimate(132, 256, 255);
    assert_eq!((one.resident_blocks, one.rounds), (1, 1.0));
    let more = Bench::new(&body).estimate(133, 256, 255);
    let two = Bench::new(&body).estimate(264, 256, 255);
    // The next takes the place of one that has ended.
    let change_us = h100().latency.block / h100().clock_ghz / 1e3;
    assert!(
        (more.us - 2.0 * one.us - change_us).abs() < 0.01,
        "{one:?} {more:?}"
    );
    assert_eq!(two.us, more.us);
    assert_eq!(
        more.limiter,
        if more.us < h100().launch_us {
            Limiter::Launch
        } else {
            Limiter::Tail
        }
    );
    // With few registers all are there at once and hide each other's latency.
    let dense = Bench::new(&body).estimate(264, 256, 32);
    assert_eq!(dense.resident_blocks, 8);
    assert!((dense.us / one.us - 1.0).abs() < 0.05, "{one:?} {dense:?}");
    // Rounds beyond those that are played are extrapolated.
    let many = Bench::new(&body).estimate(132 * 50, 256, 255);
    let rounds = (6.0 * one.us + 5.0 * change_us) / 6.0 * 50.0;
    assert!((many.us / rounds - 1.0).abs() < 0.01, "{one:?} {many:?}");
}

/// Each warp reads 64 KiB in pieces of 512 bytes, `n` at a time.
fn stream(n: usize) -> String {
    let loads = repeat(n, |index| {
        format!(
            "ld.global.nc.v4.f32 {{%f{0},%f{1},%f{2},%f{3}}}, [%d1+{4}];",
            10 + 4 * index,
            11 + 4 * index,
            12 + 4 * index,
            13 + 4 * index,
            512 * index
        )
    });
    let sums = repeat(n, |index| format!("add.f32 %f1, %f1, %f{};", 10 + 4 * index));
    format!(
        "shl.b32 %r1, %r9, 2; shr.u32 %r2, %r0, 5; add.s32 %r1, %r1, %r2; and.b32 %r3, %r0, 31;
         mad.wide.u32 %d1, %r1, 65536, %d0; mad.wide.u32 %d1, %r3, 16, %d1; mov.u32 %r4, 0;
         NEXT:\n{loads}{sums}add.s64 %d1, %d1, {}; add.s32 %r4, %r4, {n}; setp.lt.u32 %p0, %r4, 128;\n@%p0 bra NEXT;",
        512 * n
    )
}

#[test]
fn a_stream_with_enough_in_flight_reaches_the_bandwidth() {
    let device = h100();
    // 132 x 16 thread blocks of four warps: 16 a multiprocessor.
    let deep = Bench::new(&stream(4)).estimate(132 * 16, 128, 32);
    let bytes = 132.0 * 16.0 * 4.0 * 65536.0;
    assert!((deep.dram_bytes / bytes - 1.0).abs() < 0.01, "{deep:?}");
    let bound_us = bytes / device.dram_bytes_per_s * 1e6;
    assert!(
        (bound_us..1.05 * bound_us).contains(&deep.us),
        "{deep:?}, {bound_us}"
    );
    assert_eq!(deep.limiter, Limiter::Dram);
    // One load of one warp at a time: by Little's law 512 bytes in a latency.
    let shallow = Bench::new(&stream(1)).estimate(132, 32, 32);
    let bytes = 65536.0;
    let latency_us = device.latency.dram / device.clock_ghz / 1e3;
    let expected_us = bytes / 512.0 * latency_us;
    assert!(
        (expected_us..1.2 * expected_us).contains(&shallow.us),
        "{shallow:?}, {expected_us}"
    );
    assert_eq!(shallow.in_flight_peak, 512.0);
    assert_eq!(shallow.limiter, Limiter::Latency);
}

/// Estimates one warp of a kernel whose code is `kilobytes` long; registers tell kernels apart.
fn with_code(bench: &mut Bench, n_registers: u32, kilobytes: u32) -> Estimate {
    let assembled = Assembled {
        n_registers,
        code_bytes: kilobytes << 10,
    };
    bench.estimate_assembled([1, 32], assembled, &Start::after(h100()))
}

#[test]
fn code_that_no_cache_holds_comes_line_by_line() {
    let body = repeat(512, |index| format!("add.f32 %f{}, %f1, %f2;", 10 + index % 500));
    let mut bench = Bench::new(&body);
    let cold = with_code(&mut bench, 32, 8);
    assert_eq!(cold.cold_code_bytes, 8 << 10);
    // 64 lines of 8 instructions, of which 16 are on their way at a time, each from L2; at the end 15 are there in time.
    assert_clocks(&cold, 4.0 * h100().latency.l2 + 15.0 * 8.0);
    let warm = with_code(&mut bench, 32, 8);
    assert_eq!(warm.cold_code_bytes, 0);
    assert_clocks(&warm, 512.0);
    assert_eq!(warm.us, Bench::new(&body).estimate(1, 32, 32).us);
}

#[test]
fn code_that_is_jumped_over_is_not_waited_for() {
    let skipped = format!(
        "setp.ne.u32 %p0, %r8, 77;\n@%p0 bra END;\n{}END:",
        repeat(512, |_| "add.f32 %f1, %f1, %f2;".to_owned())
    );
    let mut bench = Bench::new(&skipped);
    // The first lines and the line after the jump.
    assert_clocks(&with_code(&mut bench, 32, 8), 2.0 * h100().latency.l2);
}

#[test]
fn kernels_take_each_others_place_in_the_cache_of_code() {
    let mut bench = Bench::new("add.f32 %f1, %f1, %f2;");
    let mut cold = |n_registers, kilobytes| {
        let estimate = with_code(&mut bench, n_registers, kilobytes);
        estimate.cold_code_bytes >> 10
    };
    assert_eq!([cold(32, 60), cold(40, 60), cold(32, 60)], [60, 60, 0]);
    assert_eq!([cold(48, 80), cold(40, 60)], [80, 60]);
}

#[test]
fn asynchronous_copies_are_waited_for_where_the_kernel_waits() {
    let body = |pending: u32| {
        format!(
            "mad.wide.u32 %d1, %r0, 16, %d0; shl.b32 %r1, %r0, 4; add.s32 %r1, %r1, %r8;
             cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.commit_group;
             cp.async.cg.shared.global [%r1+512], [%d1+512], 16; cp.async.commit_group;
             cp.async.wait_group {pending}; bar.sync 0;\n{}",
            repeat(256, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned())
        )
    };
    let device = h100();
    let expected = device.latency.dram + device.latency.barrier + 1024.0;
    // The way to L2 takes eight clocks for 512 bytes.
    assert_clocks(&Bench::new(&body(1)).estimate(1, 32, 32), expected + 8.0);
    let both = Bench::new(&body(0)).estimate(1, 32, 32);
    let one = Bench::new(&body(1)).estimate(1, 32, 32);
    assert!(
        (4.0..16.0).contains(&(clocks(&both) - clocks(&one))),
        "{one:?} {both:?}"
    );
}

/// Products of 64 rows by 256 columns in one group, and additions of floats before the wait for it.
fn products(n: usize, n_additions: usize) -> String {
    let list: Vec<String> = (0..128).map(|index| format!("%f{}", 100 + index)).collect();
    let multiply = format!(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{}}}, {{%r1, %r2, %r3, %r4}}, %d1, %p0, 1, 1, 0;",
        list.join(", ")
    );
    format!(
        "mov.u64 %d1, 4611686018427387904; setp.eq.u32 %p0, %r8, %r8; wgmma.fence.sync.aligned;\n{}wgmma.commit_group.sync.aligned;\n{}
         wgmma.wait_group.sync.aligned 0;",
        repeat(n, |_| multiply.clone()),
        repeat(n_additions, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned())
    )
}

#[test]
fn products_of_a_warpgroup_take_their_time_and_leave_the_warp_its_own() {
    let device = h100();
    let each = 64.0 * 256.0 * 16.0 / device.group_f16_per_clock;
    let estimate = Bench::new(&products(16, 0)).estimate(1, 128, 168);
    assert_clocks(&estimate, 16.0 * each + device.latency.matrix);
    // They hide 256 dependent additions of four clocks each, but not 1024.
    let hidden = Bench::new(&products(16, 256)).estimate(1, 128, 168);
    assert_clocks(&hidden, 16.0 * each + device.latency.matrix);
    let longer = Bench::new(&products(16, 1024)).estimate(1, 128, 168);
    assert_clocks(&longer, 4096.0 + 16.0);
    // Two warpgroups share the tensor cores.
    let two = Bench::new(&products(16, 0)).estimate(1, 256, 168);
    assert_clocks(&two, 32.0 * each + device.latency.matrix);
}

#[test]
fn a_phase_ends_when_its_copy_has_come() {
    let body = |n_waits: u32| {
        let wait = "mbarrier.try_wait.parity.shared::cta.b64 %p1, [b], 0;";
        format!(
            ".shared .align 8 .b8 b[8]; setp.eq.u32 %p0, %r0, 0;
             @%p0 mbarrier.init.shared::cta.b64 [b], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
             @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [b], 4096;
             @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%d0], 4096, [b];\n{}{}",
            if n_waits > 0 { wait } else { "" },
            repeat(256, |_| "fma.rn.f32 %f1, %f1, %f2, %f1;".to_owned())
        )
    };
    let device = h100();
    let waited = Bench::new(&body(1)).estimate(1, 64, 32);
    let not = Bench::new(&body(0)).estimate(1, 64, 32);
    let difference = clocks(&waited) - clocks(&not);
    // 4096 bytes come at 64 a clock.
    let expected = device.latency.dram + 4096.0 / device.l2_port_bytes_per_clock;
    assert!(
        (expected - 40.0..expected + 40.0).contains(&difference),
        "{difference}, {expected}"
    );
}
