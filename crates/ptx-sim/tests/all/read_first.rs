//! Registers that some path of a kernel reads before it writes them.

use tokenmill_ptx_sim::{DeviceMemory, Module};

/// Returns the number of 32-bit registers that threads may read first.
fn n_read_first(body: &str) -> usize {
    let ptx = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry kernel(.param .u64 out)\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<4>;\n\
         ld.param.u64 %rd1, [out];\n{body}\nst.global.u32 [%rd1], %r1;\nret;\n}}\n"
    );
    let module = Module::load(&ptx, &mut DeviceMemory::new()).unwrap();
    module.kernels()[0].n_read_first()[0]
}

#[test]
fn a_register_counts_that_some_path_reads_before_it_writes() {
    assert_eq!(n_read_first("mov.u32 %r1, 7;"), 0);
    assert_eq!(n_read_first("add.u32 %r1, %r2, 1;"), 1);
    assert_eq!(n_read_first(""), 1);
    // Written on one side of a branch, and on both.
    let start = "mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0; @%p1 bra LEFT;";
    assert_eq!(n_read_first(&format!("{start} mov.u32 %r1, 1; LEFT:")), 1);
    assert_eq!(
        n_read_first(&format!(
            "{start} mov.u32 %r1, 1; bra END; LEFT: mov.u32 %r1, 2; END:"
        )),
        0
    );
    // Under a guard.
    assert_eq!(
        n_read_first("mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0; @%p1 mov.u32 %r1, 1;"),
        1
    );
    // In a loop: read at its head, written at its end.
    assert_eq!(
        n_read_first(
            "mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; add.u32 %r1, %r2, 0; mov.u32 %r2, 5; \
             setp.lt.u32 %p1, %r3, 4; @%p1 bra LOOP;"
        ),
        1
    );
}
