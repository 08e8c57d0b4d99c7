package boot

// Acts are for what stands on a package that imports this one.
var Acts = acts
