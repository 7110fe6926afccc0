//! Drawings as PNG, with the fonts of the system.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, ID, Query, Source};
use resvg::usvg::{Options, Tree};

/// Why there is no picture. The message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// A picture without a font would have no text, and hugefork does not carry a font along.
    #[error("PNG pictures need a font and this system has none: install one (apt-get install fonts-dejavu-core)")]
    NoFont,
    /// There is too little memory, or a defect.
    #[error("picture {name} cannot be drawn: {what}; SVG pictures are in the page of `hugefork report`")]
    Drawing {
        /// Which picture.
        name: String,
        /// What went wrong.
        what: String,
    },
}

/// Pixels for each unit, for screens and slides of today.
const SCALE: f32 = 2.0;

/// Common families that look like the page.
const FAMILIES: [&str; 7] = ["DejaVu Sans", "Noto Sans", "Liberation Sans", "Inter", "Arial", "Helvetica", "Open Sans"];

/// Draws with the system's fonts.
pub(crate) struct Painter(Options<'static>);

impl Painter {
    /// Finds the system's fonts.
    pub(crate) fn new() -> Result<Painter, PictureError> {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        Painter::with(fonts)
    }

    fn with(mut fonts: Database) -> Result<Painter, PictureError> {
        let has =
            |family: &&str| fonts.query(&Query { families: &[Family::Name(family)], ..Query::default() }).is_some();
        // The system's sans-serif may name a font that it does not have.
        let any = || fonts.faces().next().and_then(|face| Some(face.families.first()?.0.clone()));
        let family = FAMILIES.iter().copied().find(has).map(str::to_owned).or_else(any);
        let family = family.ok_or(PictureError::NoFont)?;
        keep_in_memory(&mut fonts, &family);
        fonts.set_sans_serif_family(family);
        let font_family = "sans-serif".to_owned();
        Ok(Painter(Options { fontdb: Arc::new(fonts), font_family, ..Options::default() }))
    }

    /// `svg` as PNG.
    pub(crate) fn png(&self, name: &str, svg: &str) -> Result<Vec<u8>, PictureError> {
        let failed = |what: String| PictureError::Drawing { name: name.to_owned(), what };
        let tree = Tree::from_str(svg, &self.0).map_err(|error| failed(error.to_string()))?;
        let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| failed("it is empty".to_owned()))?;
        let mut pixels =
            Pixmap::new(size.width(), size.height()).ok_or_else(|| failed("it is too large".to_owned()))?;
        resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
        pixels.encode_png().map_err(|error| failed(error.to_string()))
    }
}

/// Reads the files of a family once. From the others, which only lend what it lacks, each text is read anew.
fn keep_in_memory(fonts: &mut Database, family: &str) {
    let mut files: BTreeMap<PathBuf, Vec<ID>> = BTreeMap::new();
    for face in fonts.faces().filter(|face| face.families.iter().any(|(name, _)| name == family)) {
        if let Source::File(path) = &face.source {
            files.entry(path.clone()).or_default().push(face.id);
        }
    }
    for (path, faces) in files {
        // What cannot be read any more cannot be drawn with either way.
        let Ok(bytes) = std::fs::read(path) else { continue };
        faces.into_iter().for_each(|face| fonts.remove_face(face));
        fonts.load_font_source(Source::Binary(Arc::new(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_fonts_is_told_which_to_install() {
        let Err(error) = Painter::with(Database::new()) else {
            panic!("there is no font");
        };
        assert!(error.to_string().contains("apt-get install fonts-dejavu-core"));
    }
}
