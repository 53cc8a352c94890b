//! Layouts as the catalog's reader understands them.

use proptest::prelude::*;
use waystage_catalog::layout::{lustre, Mirrors, Target};

use super::*;

const MIB: u64 = 1 << 20;

fn component(end: u64, stripe_mib: u32, stripes: u16, pool: Option<&str>) -> TemplateComponent {
    TemplateComponent { end, stripe_size: stripe_mib << 20, stripes, pool: pool.map(Arc::from) }
}

fn striper(targets: u32, dealing: Dealing) -> Striper {
    Striper::new(targets, vec![("flash".into(), vec![1, 3])], dealing, 7).unwrap()
}

fn progressive() -> Template {
    Template::new(vec![
        component(4 * MIB, 1, 1, None),
        component(64 * MIB, 1, 4, None),
        component(EOF, 4, ALL, None),
    ])
    .unwrap()
}

#[test]
fn every_form_is_read_by_the_catalog() {
    let striper = striper(8, Dealing::RoundRobin);
    let plain = Template::new(vec![component(EOF, 1, 2, None)]).unwrap();
    let pooled = Template::new(vec![component(EOF, 1, 9, Some("flash"))]).unwrap();
    for (template, magic, size) in [
        (plain, 0x0BD1_0BD0_u32, 5 * MIB),
        (pooled, 0x0BD3_0BD0, MIB),
        (progressive(), 0x0BD6_0BD0, 70 * MIB),
    ] {
        let made = template.encode();
        assert_eq!(made[..4], magic.to_le_bytes(), "a directory's");
        assert!(lustre::parse(&made).unwrap().is_template());
        assert_eq!(Template::decode(&made).unwrap(), template);

        let file = striper.place(&template, 3, 9).encode(size);
        assert_eq!(file[..4], magic.to_le_bytes(), "a file's");
        let layout = lustre::parse(&file).unwrap();
        assert!(!layout.is_template());
        let covered: u64 = layout.extents(size, Mirrors::All).map(|extent| extent.length).sum();
        assert_eq!(covered, size);
        if magic == 0x0BD3_0BD0 {
            assert!(layout.targets().iter().all(|t| [lustre::ost(1), lustre::ost(3)].contains(t)));
        }
    }
}

#[test]
fn what_cannot_be_had_is_refused_and_not_made_into_something_else() {
    let usual = Plain { stripe_count: 2, ..Plain::striped(1 << 20, &[], 0) };
    let alone = |plain: &Plain| Template::decode(&Md::Plain(plain.clone()).encode());
    let composed = |flags, id, plain: &Plain| {
        Template::decode(&composite(vec![entry(id, flags, 0, EOF, plain.clone())]))
    };
    assert!(alone(&usual).is_ok() && composed(entry_flag::INIT, 1, &usual).is_ok());
    let (mdt, over) = (pattern::MDT, pattern::OVERSTRIPED);
    for (pattern, count, says) in [
        (mdt, 0, "metadata target"),
        (mdt | pattern::RAID0, 1, "metadata target"),
        (over | pattern::RAID0, 4, "several objects"),
        (pattern::RAID0, 0xFFFE, "several objects"),
        (pattern::RAID0, 0xFFE0, "several objects"),
        (pattern::RELEASED | pattern::RAID0, 1, "archived"),
        (pattern::FOREIGN, 1, "archived and foreign"),
    ] {
        let plain = Plain { pattern, stripe_count: count, ..usual.clone() };
        for refused in [alone(&plain), composed(0, 1, &plain)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains(says), "{pattern:#x} {count}: {said}");
        }
    }
    let named = Plain { specific: true, ..usual.clone().in_pool("flash").unwrap() };
    assert!(alone(&named).unwrap_err().to_string().contains("one by one"));
    for flags in [entry_flag::EXTENSION, entry_flag::STALE, entry_flag::NOSYNC] {
        assert!(composed(flags, 1, &usual).is_err());
    }
    assert!(composed(0, 0x0001_0001, &usual).unwrap_err().to_string().contains("mirrors"));
}

#[test]
fn a_component_without_objects_says_what_is_planned() {
    let planned = |layout: &lustre::Md| {
        let parsed = lustre::parse(&layout.encode()).unwrap();
        parsed.components().iter().map(|c| c.planned.map(|p| (p.unit, p.count))).collect::<Vec<_>>()
    };
    let template = |count| Plain { stripe_count: count, ..Plain::striped(1 << 20, &[], 0) };
    let asked = [(0xFFFF, -1), (0xFFFE, -2), (0xFFE0, -32), (0, 0), (7, 7), (2000, 2000)];
    for (count, shown) in asked {
        let alone = Md::Plain(template(count));
        assert_eq!(planned(&alone), [Some((MIB, shown))]);
        assert_eq!(
            planned(&Md::decode(&composite(vec![entry(1, 0, 0, EOF, template(count))])).unwrap()),
            [Some((MIB, shown))]
        );
    }
    let made =
        lustre::parse(&striper(8, Dealing::RoundRobin).place(&progressive(), 0, 1).encode(MIB));
    let shown: Vec<_> = made.unwrap().components().iter().map(|c| c.planned.is_some()).collect();
    assert_eq!(shown, [false, true, true]);
}

#[test]
fn components_that_a_file_does_not_reach_have_no_objects() {
    let layout =
        lustre::parse(&striper(8, Dealing::RoundRobin).place(&progressive(), 0, 1).encode(MIB));
    let objects: Vec<usize> =
        layout.unwrap().components().iter().map(|component| component.objects.len()).collect();
    assert_eq!(objects, [1, 0, 0]);
}

#[test]
fn files_take_targets_in_turn_and_evenly() {
    let template = Template::new(vec![component(EOF, 1, 3, None)]).unwrap();
    let striper = striper(24, Dealing::RoundRobin);
    let mut held = [0; 24];
    for turn in 0..800 {
        for part in striper.place(&template, turn, 1).parts(0, 3 * MIB, false) {
            held[part.target] += 1;
        }
    }
    assert_eq!(held, [100; 24]);
}

#[test]
fn what_makes_no_layout_is_refused() {
    for components in [
        vec![],
        vec![component(MIB, 1, 1, None)],
        vec![
            component(2 * MIB, 1, 1, None),
            component(MIB, 1, 1, None),
            component(EOF, 1, 1, None),
        ],
        vec![component(EOF, 0, 1, None)],
        vec![component(EOF, 1, 0, None)],
        vec![component(EOF, 1, 1, Some("a-name-too-long-"))],
        vec![component(MIB + 1, 1, 1, None), component(EOF, 1, 1, None)],
    ] {
        assert!(Template::new(components).is_err());
    }
    assert!(Template::decode(b"no layout").is_err());
    assert!(Striper::new(4, vec![("p".into(), vec![4])], Dealing::Random, 0).is_err());
}

proptest! {
    /// The parts of a read are what the catalog's reader finds in the encoded layout.
    #[test]
    fn parts_agree_with_what_is_encoded(
        turn in 0_u64..1000, offset in 0_u64..100 * MIB, length in 0_u64..40 * MIB, random: bool,
    ) {
        let dealing = if random { Dealing::Random } else { Dealing::RoundRobin };
        let striping = striper(24, dealing).place(&progressive(), turn, turn);
        let size = 200 * MIB;
        let layout = lustre::parse(&striping.encode(size)).unwrap();
        let mut expected = std::collections::BTreeMap::new();
        for extent in layout.extents(size, Mirrors::All) {
            let from = extent.file_offset.max(offset);
            let to = (extent.file_offset + extent.length).min(offset + length);
            if from < to {
                let ost = extent.target.and_then(Target::number).expect("an OST");
                *expected.entry(ost as usize).or_insert(0) += to - from;
            }
        }
        let parts = striping.parts(offset, length, false);
        let found: std::collections::BTreeMap<_, _> =
            parts.iter().map(|part| (part.target, part.bytes)).collect();
        prop_assert_eq!(found, expected);
    }

    /// Foreign bytes are refused or understood, whatever they are.
    #[test]
    fn foreign_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Template::decode(&bytes);
    }
}
