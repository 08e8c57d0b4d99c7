package nersc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/sluice-hpc/sluice/examples/wilson/gauge"
	"github.com/sluice-hpc/sluice/examples/wilson/global"
	"github.com/sluice-hpc/sluice/examples/wilson/lattice"
	"github.com/sluice-hpc/sluice/examples/wilson/su3"
)

// Write writes a field to a file; each node writes its own sites. It sets the extents, the
// checksum and the averages of the header, and takes the rest from node 0; the default byte order
// is Big. It omits checksums of other programs among the Others, which may be of other links, rows or
// formats. Until the file is complete its name ends in .part.
//
// Collective: an error on one node is an error on all. Errors: those of package os;
// [*HeaderError]; those of the communication.
func Write(path string, h Header, field *gauge.Field, sums *global.Sums) error {
	if err := write(path, h, field, sums); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func write(path string, h Header, field *gauge.Field, sums *global.Sums) (err error) {
	l := field.Lattice
	h.Dims = l.Global
	if h.Format.Order == Unsaid {
		h.Format.Order = Big
	}
	if h.Plaquette, h.LinkTrace, err = sums.Averages(field); err != nil {
		return err
	}
	siteBytes := lattice.Axes * h.Format.linkBytes(h.Rows)
	raw := make([]byte, 0, l.Sites()*siteBytes)
	field.Each(func(_ lattice.Dims, _ int, u *su3.Matrix) { raw = h.Format.append(raw, u, h.Rows) })
	sum := uint64(h.Format.Order.checksum(raw))
	if err := sums.Words(&sum); err != nil {
		return err
	}
	h.Checksum = uint32(sum)
	h.Others = withoutChecksums(h.Others)

	part := path + ".part"
	var offset uint64
	if sums.Primary() {
		var n int
		n, err = create(part, &h)
		offset = uint64(n)
	}
	if err := sums.Agree(err, 0); err != nil {
		return err
	}
	if err := sums.Words(&offset); err != nil { // the others add nothing to it
		return err
	}
	err = sums.Agree(writeSites(part, l, raw, int64(offset), siteBytes), 0)
	if sums.Primary() {
		if err == nil {
			err = os.Rename(part, path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}
	return sums.Agree(err, 0)
}

// withoutChecksums removes the lines with checksums of Grid (SCIDAC_CHECKSUMA and B) and of MILC
// (checksums, with or without =).
func withoutChecksums(others string) string {
	var b strings.Builder
	for line := range strings.Lines(others) {
		words := strings.FieldsFunc(line, func(r rune) bool { return r == '=' || unicode.IsSpace(r) })
		if len(words) == 0 || !slices.Contains([]string{"SCIDAC_CHECKSUMA", "SCIDAC_CHECKSUMB", "checksums"}, words[0]) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// create makes a file with only a header, and returns its size.
func create(path string, h *Header) (n int, err error) {
	b, err := h.Append(nil)
	if err != nil {
		return 0, err
	}
	return len(b), os.WriteFile(path, b, 0o666)
}

// writeSites writes the sites of this node into an existing file.
func writeSites(path string, l *lattice.Lattice, raw []byte, offset int64, siteBytes int) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for r := range runs(l) {
		if _, err := file.WriteAt(raw[r.local*siteBytes:][:r.sites*siteBytes], offset+int64(r.global)*int64(siteBytes)); err != nil {
			return err
		}
	}
	return file.Sync()
}
