package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/verbs"
)

// print writes the report as text.
func (r *infoReport) print(w io.Writer) error {
	var b bytes.Buffer
	r.Host.print(&b)

	b.WriteString("\n")
	t := newTabWriter(&b)
	fmt.Fprintln(t, "provider\tavailable\twhy")
	for _, p := range r.Providers {
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Name, p.Available, p.Reason)
	}
	t.Flush()
	for i := range r.Devices {
		b.WriteString("\n")
		r.Devices[i].print(&b)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(&b, "\nerror: %s\n", e)
	}
	_, err := w.Write(trimmed(b.Bytes()))
	return err
}

func newTabWriter(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// trimmed returns a text without spaces at the ends of lines.
func trimmed(text []byte) []byte {
	var b []byte
	for line := range bytes.Lines(text) {
		b = append(append(b, bytes.TrimRight(line, " \n")...), '\n')
	}
	return b
}

func (h *hostEntry) print(b *bytes.Buffer) {
	t := newTabWriter(b)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("host", "%s", h.Name)
	line("system", "%s", strings.Join(strings.Fields(h.OS+" "+h.Kernel+" "+h.Arch), " "))
	cpus := strconv.Itoa(h.CPUs)
	if len(h.AllowedCPUs) > 0 {
		cpus += ": " + listText(h.AllowedCPUs)
	}
	line("CPUs", "%s", cpus)
	if h.MemlockBytes != nil {
		most := ""
		if *h.MemlockMaxBytes != *h.MemlockBytes {
			most = ", can raise that to " + sizeText(*h.MemlockMaxBytes)
		}
		line("may pin", "%s%s (ulimit -l)", sizeText(*h.MemlockBytes), most)
	}
	if h.OS == "linux" {
		devices, dev := "no device in the kernel", "no /dev/infiniband"
		if len(h.RDMADevices) > 0 {
			devices = strings.Join(h.RDMADevices, ", ")
		}
		if h.DevInfiniband {
			dev = "/dev/infiniband exists"
		}
		line("RDMA", "%s; %s", devices, dev)
	}
	for _, p := range h.HugePages {
		line("huge pages", "%d of %s, %d free", p.Total, sizeText(p.SizeBytes), p.Free)
	}
	first := ""
	if slices.ContainsFunc(h.HugePages, func(p hugePageEntry) bool { return p.SizeBytes == 2<<20 && p.Free > 0 }) {
		first = "from 2 MiB on huge pages of the pool, while there are any; then "
	}
	switch h.SharedHuge {
	case "":
	case "never", "deny":
		line("Alloc", "%spages of 4 KiB; large ones: sysctl vm.nr_hugepages=N, or echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled", first)
	default:
		line("Alloc", "%shuge pages where they fit (shmem_enabled is %s)", first, h.SharedHuge)
	}
	if h.Transport != "" {
		line(channel.EnvTransport, "%s", h.Transport)
	}
	t.Flush()
}

func (d *deviceEntry) print(b *bytes.Buffer) {
	fmt.Fprintf(b, "device %s\n", d.Name)
	t := newTabWriter(b)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("provider", "%s", d.Provider)
	if d.Error != "" {
		line("error", "%s", d.Error)
	}
	if d.Netdev != "" {
		rdma := ""
		if d.RDMADevice != "" {
			rdma = ", also used by the RDMA device " + d.RDMADevice
		}
		line("netdev", "%s%s", d.Netdev, rdma)
	}
	if d.NotOpened != "" {
		line("not opened", "%s", d.NotOpened)
	}
	if d.Firmware != "" {
		line("version", "%s", d.Firmware)
	}
	for _, c := range d.CharDevices {
		problem := ""
		if c.Error != "" {
			problem = ": " + c.Error
		}
		line("file", "%s%s", c.Path, problem)
	}
	if d.NUMANode != nil {
		line("NUMA node", "%d, CPUs %s", *d.NUMANode, listText(d.LocalCPUs))
	}
	if d.Strides != nil {
		line("strides", "in hardware: %s: %s", d.Strides.Available, d.Strides.Reason)
	}
	if l := d.Limits; l != nil {
		line("message", "up to %s, of %d SGEs, %d in an RDMA_READ; %s inline", sizeText(int64(l.MaxMsgSize)), l.MaxSGE, l.MaxSGERd, sizeText(int64(l.MaxInlineData)))
		line("QPs", "%d, of %d WRs; RDMA_READs and atomics: %d answered at once, %d outstanding", l.MaxQP, l.MaxQPWR, l.MaxQPRdAtomic, l.MaxQPInitRdAtom)
		line("SRQs", "%d, of %d WRs", l.MaxSRQ, l.MaxSRQWR)
		line("CQs", "%d, of %d entries", l.MaxCQ, l.MaxCQE)
		line("MRs", "%d, of up to %s", l.MaxMR, sizeText(int64(l.MaxMRSize))) // mlx5 says 1<<64-1: no limit
		line("PDs", "%d", l.MaxPD)
		line("atomics", "%s", l.AtomicCap)
		if l.LoadStore {
			line("memory", "of a peer can be mapped")
		}
	}
	for i := range d.Ports {
		d.Ports[i].print(line)
	}
	t.Flush()
}

func (p *portEntry) print(line func(name, format string, args ...any)) {
	if p.State != "" {
		lid, netdev := "", ""
		if p.LinkLayer == verbs.LinkLayerInfiniBand.String() {
			lid = fmt.Sprintf(", LID %d", p.LID)
		}
		if p.Netdev != "" {
			netdev = ", " + p.Netdev
		}
		line(fmt.Sprintf("port %d", p.Port), "%s, link layer %s%s, MTU %d of %d%s, %d pkeys, %d GIDs", p.State, p.LinkLayer, netdev, p.ActiveMTUBytes, p.MaxMTUBytes, lid, p.PKeyTableLen, p.GIDTableLen)
	}
	if p.Error != "" {
		line(fmt.Sprintf("port %d", p.Port), "error: %s", p.Error)
	}
	for _, g := range p.GIDs {
		text := g.GID
		for _, of := range []string{g.Type, g.Netdev} {
			if of != "" {
				text += ", " + of
			}
		}
		line(fmt.Sprintf("  GID %d", g.Index), "%s", text)
	}
}

// sizeText formats a number of bytes in the largest binary unit that divides it; -1 is no
// limit.
func sizeText(n int64) string {
	if n < 0 {
		return "any number of bytes"
	}
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%d %s", n, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// listText formats a list of numbers as the kernel does, "0-3,8".
func listText(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		last := i
		for last+1 < len(list) && list[last+1] == list[last]+1 {
			last++
		}
		part := strconv.Itoa(list[i])
		if last > i {
			part += "-" + strconv.Itoa(list[last])
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ",")
}
