//! Loads, stores, local memory, calls, globals, atomics and the order of thread blocks.

use tokenmill_ptx_sim::{Arguments, DeviceMemory, LaunchConfig, LaunchError, Module, launch};

use crate::bench::{HEADER, one_warp, run};

#[test]
fn vectors_and_narrow_elements_keep_their_values() {
    let ptx = ".visible .entry k(.param .u64 a, .param .u64 b) {
        .reg .b16 %h<5>; .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .b32 %t;
        ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b];
        mov.u32 %t, %tid.x;
        mad.wide.u32 %d0, %t, 16, %d0; mad.wide.u32 %d1, %t, 32, %d1;
        ld.global.nc.v4.u32 {%r0, %r1, %r2, %r3}, [%d0];
        st.global.v4.u32 [%d1], {%r3, %r2, %r1, %r0};
        ld.global.s8 %r0, [%d0+1]; st.global.u32 [%d1+16], %r0;
        ld.global.s8 %h0, [%d0+1]; st.global.u16 [%d1+20], %h0;
        ld.global.v2.u8 {%h1, %h2}, [%d0+2]; st.global.v2.u8 [%d1+22], {%h2, %h1};
        ld.global.v2.b64 {%d2, %d3}, [%d0]; xor.b64 %d2, %d2, %d3; st.global.b64 [%d1+24], %d2;
        ret; }";
    let input: Vec<u8> = (0..512u32).map(|index| (index * 37 + 200) as u8).collect();
    let mut buffers = [input.clone(), vec![0; 1024]];
    let report = run(ptx, &one_warp(), &mut buffers);
    assert_eq!(report.findings, []);
    for (source, found) in input.chunks(16).zip(buffers[1].chunks(32)) {
        let mut expected: Vec<u8> = source.chunks(4).rev().flatten().copied().collect();
        expected.extend(i32::from(source[1] as i8).to_le_bytes());
        expected.extend(i16::from(source[1] as i8).to_le_bytes());
        expected.extend([source[3], source[2]]);
        expected.extend(source[..8].iter().zip(&source[8..]).map(|(a, b)| a ^ b));
        assert_eq!(found, expected);
    }
}

#[test]
fn local_memory_is_private_to_a_thread() {
    let ptx = ".visible .entry k(.param .u64 out) {
        .local .align 8 .b8 depot[16]; .reg .b32 %r<4>; .reg .b64 %d<5>;
        ld.param.u64 %d0, [out]; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1;
        mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 3; mad.wide.u32 %d3, %r1, 4, %d2;
        st.u32 [%d3], %r0;
        cvta.to.local.u64 %d4, %d3; ld.local.u32 %r2, [%d4];
        mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0], %r2; ret; }";
    let mut buffers = [vec![0; 128]];
    let report = run(ptx, &one_warp(), &mut buffers);
    assert_eq!(report.findings, []);
    let expected: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(buffers[0], expected);
}

#[test]
fn called_functions_are_inlined_with_their_own_registers() {
    let ptx = ".func (.param .b32 result) twice_plus(.param .b32 a, .param .b32 b) {
            .reg .pred %p<2>; .reg .b32 %r<4>;
            ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b];
            setp.gt.u32 %p0, %r0, 9; @%p0 bra $big;
            mad.lo.s32 %r2, %r0, 2, %r1; st.param.b32 [result], %r2; ret;
        $big: st.param.b32 [result], 77; ret; }
        .visible .entry k(.param .u64 out) {
            .reg .b32 %r<4>; .reg .b64 %d<3>;
            mov.u32 %r0, %tid.x; mov.u32 %r1, 100;
            { .param .b32 p0; .param .b32 p1; .param .b32 q;
              st.param.b32 [p0], %r0; st.param.b32 [p1], %r1;
              call.uni (q), twice_plus, (p0, p1); ld.param.b32 %r2, [q]; }
            { .param .b32 p0; .param .b32 p1; .param .b32 q;
              st.param.b32 [p0], 1; st.param.b32 [p1], %r2;
              call.uni (q), twice_plus, (p0, p1); ld.param.b32 %r2, [q]; }
            ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0], %r2; ret; }";
    let mut buffers = [vec![0; 128]];
    let report = run(ptx, &one_warp(), &mut buffers);
    assert_eq!(report.findings, []);
    let value = |thread: u32| if thread > 9 { 79 } else { 2 * thread + 102 };
    let expected: Vec<u8> = (0..32).flat_map(|thread| value(thread).to_le_bytes()).collect();
    assert_eq!(buffers[0], expected);
}

#[test]
fn recursion_is_refused() {
    let ptx = format!("{HEADER}.func f() {{ call.uni f; ret; }} .visible .entry k() {{ call.uni f; ret; }}");
    let message = Module::load(&ptx, &mut DeviceMemory::new())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("the call of `f` cannot be resolved"),
        "{message}"
    );
}

#[test]
fn globals_are_initialized_and_kept_between_launches() {
    let ptx = format!(
        "{HEADER}.global .align 4 .u32 count = 5; .const .align 4 .b32 table[3] = {{10, 20, 0f3F800000}};
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<4>; .reg .b64 %d<2>;
        ld.param.u64 %d0, [out]; ld.global.u32 %r0, [count]; ld.const.u32 %r1, [table+4]; ld.const.u32 %r2, [table+8];
        add.u32 %r0, %r0, %r1; st.global.u32 [count], %r0; st.global.u32 [%d0], %r0; st.global.u32 [%d0+4], %r2; ret; }}"
    );
    let mut memory = DeviceMemory::new();
    let module = Module::load(&ptx, &mut memory).unwrap();
    let out = memory.alloc(8).unwrap();
    let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
    for expected in [25u32, 45] {
        let report = launch(&module.kernels()[0], &memory, &config, &Arguments::new().ptr(out)).unwrap();
        assert_eq!(report.findings, []);
        let found = memory.read_vec(out, 8).unwrap();
        assert_eq!(found, [expected.to_le_bytes(), 1f32.to_le_bytes()].concat());
    }
}

#[test]
fn structure_parameters_are_read_by_offset() {
    let ptx = format!(
        "{HEADER}.visible .entry k(.param .u8 flag, .param .align 8 .b8 pair[16]) {{ .reg .b32 %r<4>; .reg .b64 %d<2>;
        ld.param.u64 %d0, [pair+8]; ld.param.u32 %r0, [pair+4]; ld.param.s8 %r1, [flag]; add.s32 %r0, %r0, %r1;
        st.global.u32 [%d0], %r0; ret; }}"
    );
    let mut memory = DeviceMemory::new();
    let module = Module::load(&ptx, &mut memory).unwrap();
    let out = memory.alloc(4).unwrap();
    let pair = [&[0; 4], &100u32.to_le_bytes()[..], &out.0.to_le_bytes()].concat();
    let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
    let arguments = Arguments::new().bytes(&[0xff]).bytes(&pair);
    launch(&module.kernels()[0], &memory, &config, &arguments).unwrap();
    assert_eq!(memory.read_vec(out, 4).unwrap(), 99u32.to_le_bytes());

    let kernel = module.kernel("k").unwrap();
    let count = launch(kernel, &memory, &config, &Arguments::new());
    assert!(matches!(
        count,
        Err(LaunchError::ArgumentCount {
            expected: 2,
            found: 0,
            ..
        })
    ));
    let size = launch(kernel, &memory, &config, &Arguments::new().u32(1).bytes(&pair));
    assert!(matches!(
        size,
        Err(LaunchError::ArgumentSize {
            index: 0,
            expected: 1,
            ..
        })
    ));
    let grid = launch(
        kernel,
        &memory,
        &LaunchConfig::new([0, 1, 1], [1, 1, 1]),
        &arguments,
    );
    assert!(matches!(grid, Err(LaunchError::Size { what: "grid.x", .. })));
    assert!(module.kernel("other").is_err());
}

/// Each thread of each thread block does `atomic` on the first buffer; its result goes to the second.
fn run_atomic(atomic: &str, start: u64, blocks: u32) -> (u64, Vec<u64>) {
    let ptx = format!(
        ".visible .entry k(.param .u64 cell, .param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %d<9>;
        ld.param.u64 %d0, [cell]; ld.param.u64 %d1, [out];
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r0, %r1, 32, %r2; cvt.u64.u32 %d3, %r0; mov.u64 %d2, 0;
        {atomic}
        mad.wide.u32 %d1, %r0, 8, %d1; st.global.u64 [%d1], %d2; ret; }}"
    );
    let n = 32 * blocks as usize;
    let mut buffers = [start.to_le_bytes().to_vec(), vec![0; 8 * n]];
    let report = run(&ptx, &LaunchConfig::new([blocks, 1, 1], [32, 1, 1]), &mut buffers);
    assert_eq!(report.findings, []);
    assert_eq!(report.counters.global_atomics, n as u64);
    let (out, _) = buffers[1].as_chunks::<8>();
    let cell = u64::from_le_bytes(buffers[0][..8].try_into().unwrap());
    (cell, out.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
}

#[test]
fn atomics_on_global_memory() {
    assert_eq!(run_atomic("red.global.add.u32 [%d0], %r0;", 1, 4).0, 1 + 127 * 64);
    assert_eq!(run_atomic("red.global.max.u64 [%d0], %d3;", 50, 4).0, 127);
    assert_eq!(run_atomic("red.global.min.s32 [%d0], %r0;", 50, 4).0, 0);
    assert_eq!(run_atomic("red.global.or.b32 [%d0], %r0;", 0, 4).0, 127);
    let (last, tickets) = run_atomic("atom.global.inc.u32 %r3, [%d0], 9; cvt.u64.u32 %d2, %r3;", 0, 4);
    assert_eq!(last, 8);
    assert_eq!(tickets, (0..128).map(|thread| thread % 10).collect::<Vec<_>>());
    let (last, old) = run_atomic("atom.global.exch.b64 %d2, [%d0], %d3;", 999, 2);
    assert_eq!((last, old[0], old[63]), (63, 999, 62));
    let (last, old) = run_atomic(
        "atom.relaxed.gpu.global.cas.b32 %r3, [%d0], 0, 7; cvt.u64.u32 %d2, %r3;",
        0,
        2,
    );
    assert_eq!((last, old[0], old[1]), (7, 0, 7));
    let float = "cvt.rn.f32.u32 %r3, %r0; atom.global.add.f32 %r4, [%d0], %r3;";
    assert_eq!(run_atomic(float, 0, 2).0, u64::from(2016f32.to_bits()));
}

#[test]
fn kernels_that_depend_on_the_order_of_blocks_run_them_in_order() {
    let load = |body: &str| {
        let ptx = format!(
            "{HEADER}.visible .entry k(.param .u64 a) {{ .reg .b32 %r<3>; .reg .b64 %d<3>; ld.param.u64 %d0, [a]; {body} ret; }}"
        );
        Module::load(&ptx, &mut DeviceMemory::new()).unwrap().kernels()[0].runs_blocks_in_order()
    };
    assert!(load("atom.global.add.u32 %r0, [%d0], 1;"));
    assert!(load("mov.u32 %r0, 0; red.global.add.f32 [%d0], %r0;"));
    assert!(!load("red.global.add.u32 [%d0], 1;"));
    assert!(!load("ld.global.u32 %r0, [%d0];"));
}

#[test]
fn results_and_counters_do_not_depend_on_the_number_of_host_threads() {
    let ptx = ".visible .entry k(.param .u64 a) { .reg .b32 %r<4>; .reg .b64 %d<3>;
        ld.param.u64 %d0, [a]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.s32 %r0, %r0, 32, %r1;
        mad.wide.u32 %d1, %r0, 4, %d0; ld.global.u32 %r2, [%d1]; mul.lo.u32 %r2, %r2, %r0; st.global.u32 [%d1], %r2; ret; }";
    let results: Vec<_> = [1, 2, 7]
        .map(|host_threads| {
            let mut buffers = [(0..32 * 97 * 4u32).map(|index| index as u8).collect::<Vec<_>>()];
            let mut config = LaunchConfig::new([97, 1, 1], [32, 1, 1]);
            config.host_threads = host_threads;
            (run(ptx, &config, &mut buffers), buffers)
        })
        .into();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}
