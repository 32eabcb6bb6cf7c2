//! docs/kernels.md against the manifest, as far as it needs no compiler. The rest is `examples/kernel_check`.

#[path = "../examples/kernel_check/page.rs"]
#[allow(dead_code, reason = "the other table is for the compiler's check")]
mod page;

#[test]
fn the_page_has_every_kernel_and_what_it_moves_and_computes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kernels.md");
    let text = std::fs::read_to_string(path).unwrap();
    let wanted = page::work_table();
    assert!(wanted.lines().count() > 20, "{wanted}");
    let found = page::section(&text, "work").expect("docs/kernels.md has the section");
    assert_eq!(found, wanted, "the example kernel_check makes the tables of docs/kernels.md anew with --write");
    let registers = page::section(&text, "registers").expect("docs/kernels.md has the section");
    for kernel in ragen_cuda::kernels::all() {
        assert!(
            registers.contains(&format!("| {} |", kernel.name)),
            "{} is not in the table of registers",
            kernel.name
        );
    }
}

#[test]
fn a_section_is_replaced_and_nothing_else() {
    let old = "a\n<!-- x begins -->\nold\n<!-- x ends -->\nb\n";
    assert_eq!(page::section(old, "x"), Some("old\n"));
    assert_eq!(page::with_section(old, "x", "new\n"), "a\n<!-- x begins -->\nnew\n<!-- x ends -->\nb\n");
    assert_eq!(page::with_section(old, "y", "new\n"), old);
}
