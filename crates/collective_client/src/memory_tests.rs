//! Packing and unpacking, against a model that goes byte by byte.

use proptest::prelude::*;

use super::*;

fn bytes(count: i64) -> Datatype {
    Datatype::bytes(count).unwrap()
}

/// A monotone filetype: blocks with gaps, some of them nested.
fn filetype() -> impl Strategy<Value = Datatype> {
    let blocks = proptest::collection::vec((1_i64..9, 0_i64..7), 1..6);
    (blocks, 0_i64..9, 1_i64..4, any::<bool>()).prop_map(|(blocks, tail, count, nested)| {
        let (mut at, mut lengths, mut displacements) = (0, Vec::new(), Vec::new());
        for (length, gap) in blocks {
            at += gap;
            lengths.push(length);
            displacements.push(at);
            at += length;
        }
        let inner = Datatype::hindexed(&lengths, &displacements, &bytes(1)).unwrap();
        let inner = Datatype::resized(0, at + tail, &inner).unwrap();
        if nested {
            Datatype::hvector(count, 1, at + tail + 3, &inner).unwrap()
        } else {
            inner
        }
    })
}

/// A memory type, also with decreasing displacements and gaps.
fn memory() -> impl Strategy<Value = Option<Datatype>> {
    let blocks = proptest::collection::vec((1_i64..9, 0_i64..5), 1..5);
    let irregular = (blocks, any::<bool>()).prop_map(|(blocks, reversed)| {
        let (mut at, mut lengths, mut displacements) = (0, Vec::new(), Vec::new());
        for (length, gap) in blocks {
            at += gap;
            lengths.push(length);
            displacements.push(at);
            at += length;
        }
        if reversed {
            lengths.reverse();
            displacements.reverse();
        }
        Some(Datatype::hindexed(&lengths, &displacements, &bytes(1)).unwrap())
    });
    prop_oneof![Just(None), irregular, (1_i64..5).prop_map(|n| Some(bytes(n)))]
}

fn window() -> impl Strategy<Value = Window> {
    (0_u64..60, 1_u64..80, 1_u64..20, 0_u64..20).prop_map(|(lo, length, block, gap)| {
        Window::new(lo, lo + length, block, block + gap).unwrap()
    })
}

/// (file offset, index in memory) of every byte of an operation, in order of the data.
fn model(
    view: &View,
    range: &Range<u64>,
    count: i64,
    memory: Option<&Datatype>,
) -> Vec<(u64, usize)> {
    let mut places = Vec::new();
    for element in 0..count {
        match memory {
            None => places.push(usize::try_from(element).unwrap()),
            Some(memory) => {
                for run in memory.runs(0..memory.size()) {
                    for byte in 0..run.length {
                        let at = element * memory.extent() + run.offset + byte.cast_signed();
                        places.push(usize::try_from(at).unwrap());
                    }
                }
            }
        }
    }
    let offsets = range.clone().map(|data| view.position(data).unwrap());
    offsets.zip(places).collect()
}

proptest! {
    #[test]
    fn every_byte_is_packed_and_unpacked_where_the_model_says(
        filetype in filetype(), memory in memory(), displacement in 0_i64..20,
        offset in 0_u64..30, count in 0_i64..20, window in window(), capacity in prop_oneof![Just(0_usize), 64_usize..200],
        steps in any::<bool>(),
    ) {
        let view = View::new(displacement, 1, filetype).unwrap();
        let span = usize::try_from(memory.as_ref().map_or(count, |m| m.lower() + m.extent() * count)).unwrap();
        let mut source: Vec<u8> = (0..span + 1).map(|i| u8::try_from(i % 251).unwrap() + 1).collect();
        let start = source.as_mut_ptr();
        // SAFETY: `source` covers `count` elements.
        let data = unsafe { Data::new(start, count, memory.as_ref()) }.unwrap();
        let range = offset..offset + data.bytes();
        let places = model(&view, &range, count, memory.as_ref());
        prop_assert_eq!(places.len() as u64, data.bytes());
        let transfer = Transfer { view: &view, range, data: &data };

        let inside = |o: u64| {
            (window.lo..window.hi).contains(&o) && (o - window.lo) % window.stride < window.block
        };
        let size = usize::try_from(window.bytes()).unwrap();
        let mut expected = vec![0_u8; size];
        for (offset, at) in places.iter().filter(|(offset, _)| inside(*offset)) {
            expected[usize::try_from(window.position(*offset)).unwrap()] = source[*at];
        }

        let mut found = vec![0_u8; size];
        let mut covered = Vec::new();
        let (mut from, mut rounds) = (0, 0);
        while from < window.bytes() {
            // SAFETY: `found` has `size` bytes.
            let image = unsafe { Image::new(found.as_mut_ptr(), size as u64) };
            let capacity = if steps { capacity.min(64) } else { capacity };
            let (list, upto) = transfer.pack(&window, Some(image), capacity, from);
            prop_assert!(list.len() <= capacity);
            for run in coverage::runs(&list, window.bytes()) {
                let (position, bytes) = run.unwrap();
                covered.extend(position..position + bytes);
            }
            prop_assert!(upto > from);
            from = upto;
            rounds += 1;
        }
        prop_assert!(rounds == 1 || capacity > 0);
        prop_assert_eq!(&found, &expected);
        if capacity > 0 {
            let mut listed: Vec<u64> = places.iter().filter(|(offset, _)| inside(*offset))
                .map(|(offset, _)| window.position(*offset)).collect();
            listed.sort_unstable();
            covered.dedup();
            prop_assert_eq!(covered, listed);
        }

        let next = places.iter().map(|(offset, _)| *offset).filter(|o| *o >= window.hi).min();
        prop_assert_eq!(transfer.next(window.hi), next.unwrap_or(u64::MAX));

        let mut target = vec![0_u8; span + 1];
        // SAFETY: `target` covers `count` elements.
        let data = unsafe { Data::new(target.as_mut_ptr(), count, memory.as_ref()) }.unwrap();
        let back = Transfer { view: &view, range: transfer.range.clone(), data: &data };
        // SAFETY: `found` has `size` bytes.
        back.unpack(&window, unsafe { Image::new(found.as_mut_ptr(), size as u64) });
        let mut wanted = vec![0_u8; span + 1];
        for (_, at) in places.iter().filter(|(offset, _)| inside(*offset)) {
            wanted[*at] = source[*at];
        }
        prop_assert_eq!(target, wanted);
    }
}

#[test]
fn a_window_beyond_its_image_is_not_written() {
    let mut source = [7_u8; 16];
    // SAFETY: 16 bytes.
    let data = unsafe { Data::new(source.as_mut_ptr(), 16, None) }.unwrap();
    let view = View::stream(0).unwrap();
    let transfer = Transfer { view: &view, range: 0..16, data: &data };
    let mut image = [0_u8; 8];
    // SAFETY: 8 bytes, though the window has 16.
    let small = unsafe { Image::new(image.as_mut_ptr(), 8) };
    transfer.pack(&Window::range(0, 16).unwrap(), Some(small), 0, 0);
    assert_eq!(image, [0; 8]);
}

#[test]
fn bytes_at_null_and_a_negative_count_are_errors() {
    // SAFETY: nothing is at these addresses, and nothing is read.
    let bad =
        unsafe { [Data::new(std::ptr::null_mut(), 1, None), Data::new(8 as *mut u8, -1, None)] };
    assert!(bad.into_iter().all(|data| data.unwrap_err().code == Code::Argument));
    // SAFETY: no byte.
    assert_eq!(unsafe { Data::new(std::ptr::null_mut(), 0, None) }.unwrap().bytes(), 0);
}
