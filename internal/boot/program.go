package boot

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
)

// ownProgram says what this process runs. The build is known by the ID that the linker has put into the
// file, of which a few pages are read; elsewhere by the revision of its source.
var ownProgram = sync.OnceValue(func() program {
	path, err := os.Executable()
	if err != nil {
		return program{}
	}
	name := shorten(strings.ReplaceAll(filepath.Base(path), "\x00", ""), maxName)
	id := linkedID(path)
	if id == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			id = info.String()
		}
	}
	if id != "" {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:maxBuild/2])
	}
	return program{name: name, build: id}
})

// linkedID returns the build IDs in the notes of a file in ELF, Go's and GNU's; "" if there are none.
func linkedID(path string) (id string) {
	if own := "/proc/self/exe"; exists(own) {
		path = own // the file at the path may be another one by now
	}
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 4096 // bytes of a note: what is longer is none
	for _, name := range []string{".note.go.buildid", ".note.gnu.build-id"} {
		if s := f.Section(name); s != nil && s.Size <= most {
			if b, err := s.Data(); err == nil {
				id += string(b)
			}
		}
	}
	return id
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// differs says in words how a program is another one than that of rank; "" if it is the same, as far as
// is known.
func (p *program) differs(other *program, rank string) string {
	switch {
	case p.name == "" || other.name == "":
		return ""
	case p.name != other.name:
		return "another program, " + plain(p.name) + ", than " + rank + ", which runs " + plain(other.name)
	case p.build != other.build && p.build != "" && other.build != "":
		return "another build of " + plain(p.name) + " than " + rank
	}
	return ""
}
