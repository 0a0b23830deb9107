//! [`Pickle`]: a dictionary of tensors in Python's pickle protocol 2, as PyTorch writes it.

/// The operations of the protocol that a dictionary of tensors needs.
const PROTOCOL: [u8; 2] = [0x80, 2];
const EMPTY_DICT: u8 = b'}';
const EMPTY_TUPLE: u8 = b')';
const MARK: u8 = b'(';
const GLOBAL: u8 = b'c';
const TEXT: u8 = b'X';
const LONG: u8 = 0x8a;
const TUPLE: u8 = b't';
const REDUCE: u8 = b'R';
const FALSE: u8 = 0x89;
const PERSISTENT_ID: u8 = b'Q';
const SET_ITEMS: u8 = b'u';
const STOP: u8 = b'.';

/// A dictionary of tensors that is being written.
pub(super) struct Pickle(Vec<u8>);

impl Pickle {
    pub(super) fn dictionary() -> Self {
        let mut bytes = PROTOCOL.to_vec();
        bytes.extend([EMPTY_DICT, MARK]);
        Self(bytes)
    }

    /// Adds a tensor of f32 whose values are in the file `data/{number}`.
    pub(super) fn tensor(&mut self, name: &str, number: usize, shape: &[usize]) {
        let elements = shape.iter().product();
        self.text(name);
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.0.push(MARK);
        self.0.push(MARK);
        self.text("storage");
        self.global("torch", "FloatStorage");
        self.text(&number.to_string());
        self.text("cpu");
        self.integer(elements);
        self.0.extend([TUPLE, PERSISTENT_ID]);
        self.integer(0);
        self.integers(shape);
        self.integers(&strides(shape));
        self.0.push(FALSE);
        self.global("collections", "OrderedDict");
        self.0.extend([EMPTY_TUPLE, REDUCE, TUPLE, REDUCE]);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.extend([SET_ITEMS, STOP]);
        self.0
    }

    fn text(&mut self, text: &str) {
        self.0.push(TEXT);
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn global(&mut self, module: &str, name: &str) {
        self.0.push(GLOBAL);
        self.0.extend(format!("{module}\n{name}\n").as_bytes());
    }

    /// A signed integer of 9 bytes: the largest u64 needs one more bit.
    fn integer(&mut self, value: usize) {
        self.0.extend([LONG, 9]);
        self.0.extend((value as u64).to_le_bytes());
        self.0.push(0);
    }

    fn integers(&mut self, values: &[usize]) {
        self.0.push(MARK);
        for value in values {
            self.integer(*value);
        }
        self.0.push(TUPLE);
    }
}

/// Returns the distance between neighbours along each dimension of a row-major tensor.
fn strides(shape: &[usize]) -> Vec<usize> {
    let after = (1..=shape.len()).map(|dim| shape[dim..].iter().product());
    after.collect()
}
